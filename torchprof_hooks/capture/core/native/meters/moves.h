// Meters are told that a pass which Python has planned has gone over to other owners.

#pragma once

#include "../node.h"

namespace {

bool as_nodes(PyObject* list, std::vector<Node*>* nodes) {
  if (!PyList_Check(list)) return false;
  for (Py_ssize_t place = 0; place < PyList_GET_SIZE(list); place++) {
    PyObject* node = PyList_GET_ITEM(list, place);
    if (!PyObject_TypeCheck(node, node_type)) return false;
    nodes->push_back(reinterpret_cast<Node*>(node));
  }
  return true;
}

// Reads two lists: calls that ended, innermost first, and calls that began, outermost first.
bool as_move(PyObject* args, std::vector<Node*>* closed, std::vector<Node*>* opened) {
  PyObject *closes, *opens;
  if (!PyArg_ParseTuple(args, "OO", &closes, &opens)) return false;
  if (as_nodes(closes, closed) && as_nodes(opens, opened) && closed->size() + opened->size() != 0)
    return true;
  PyErr_SetString(PyExc_TypeError, "must be lists of nodes, not both empty");
  return false;
}

// Has a meter read, and tells it of the calls that ended and began.
template <class Meter>
PyObject* moved(Meter* meter, PyObject* args) {
  std::vector<Node*> closed, opened;
  if (!as_move(args, &closed, &opened)) return nullptr;
  auto now = meter->read(closed.empty() ? opened[0]->around() : closed[0]);
  for (Node* node : closed) meter->closed(node, now);
  for (Node* node : opened) meter->opened(node, now);
  Py_RETURN_NONE;
}

}  // namespace
