// Calls of functions, as a torch function mode is shown them.

#pragma once

#include "calls.h"
#include "shapes.h"

namespace {

// The node, next to `node`, of calls with inputs of these shapes; `node` itself if shapes are
// not told apart. A new reference, or null for an exception.
PyObject* shaped(PyObject* self, Node* node, PyObject* function, PyObject* args, PyObject* kwargs) {
  Cursor* cursor = Cursor::of(self);
  if (!cursor->by_shapes || node->is_hidden) return Py_NewRef(node);
  Owned shapes(shapes::usual(args, kwargs));
  if (shapes) {
    PyObject* known = PyDict_GetItemWithError(node->by_shapes, shapes.get());
    if (known != nullptr) return Py_NewRef(known);
    if (PyErr_Occurred()) PyErr_Clear();  // symbolic sizes have no hash
  }
  Owned keywords(kwargs ? Py_NewRef(kwargs) : PyDict_New());
  Owned sites(PyObject_GetAttr(cursor->functions, names.sites));
  if (!keywords || !sites) return nullptr;
  return call_method(sites.get(), names.seen, node, function, args, keywords.get());
}

// Closes the call at `node`, unless measuring was stopped in the middle of it. False: an exception.
bool close_function(PyObject* self, Node* node, Nanoseconds end_ns) {
  Cursor* cursor = Cursor::of(self);
  if (cursor->site != node) {
    Owned end(PyLong_FromLongLong(end_ns));
    Owned is_open(call_method(self, names.returns_to, node, end.get()));
    if (!is_open) return false;
    if (is_open.get() != Py_True) return true;  // measuring was stopped in the middle of it
  }
  if (!read_at_end(self, node, end_ns)) return false;
  go_to(cursor, node->around());
  end_own(cursor, node);
  if (node->is_entry)
    end_entry(cursor, node, end_ns);
  else
    cursor->log->book(node->code, node->start_ns, end_ns);
  return true;
}

// Closes the call of a function that has returned. False: an exception.
bool function_returned(PyObject* self, Node* node, Nanoseconds end_ns) {
  return close_function(self, node, end_ns) && fold_if_due(Cursor::of(self)) >= 0;
}

// Tells that the exception that is set is leaving the call at `node`, so that the call is
// closed. The exception stays set, unless telling raises another one.
void function_raised(PyObject* self, Node* node) {
  Owned error(take_raised());
  if (is_done(call_method(Cursor::of(self)->functions, names.aborted, self, node, error.get())))
    set_raised(Py_NewRef(error.get()));
}

// Calls a function, and measures the call at `found`, the node that was found for it.
// kwargs: or null.
PyObject* measure(PyObject* self, Node* found, PyObject* function, PyObject* args, PyObject* kwargs) {
  Owned place(shaped(self, found, function, args, kwargs));
  if (!place) return nullptr;
  Node* node = Node::of(place.get());
  if (node->is_entry && !look_for_devices(self)) return nullptr;
  PyObject* outputs = nullptr;
  int64_t low = next_number();
  own_calls(Cursor::of(self), node, low);
  if (open_node(self, node, low))
    outputs = PyObject_Call(function, args, kwargs);
  if (outputs != nullptr && function_returned(self, node, clock_ns())) return outputs;
  function_raised(self, node);
  Py_XDECREF(outputs);
  return nullptr;
}

// What a function is called with, as PyObject_Call takes it.
struct Inputs {
  Inputs(PyObject* args, PyObject* kwargs) : args(PySequence_Tuple(args)), kwargs(as_dict(kwargs)) {}
  explicit operator bool() const { return args && !PyErr_Occurred(); }

  Owned args, kwargs;  // kwargs: null if there are none

 private:
  static PyObject* as_dict(PyObject* given) {
    if (given == Py_None || (PyDict_Check(given) && PyDict_GET_SIZE(given) == 0)) return nullptr;
    if (PyDict_Check(given)) return Py_NewRef(given);
    PyObject* dict = PyDict_New();
    if (dict != nullptr) PyDict_Update(dict, given);
    return dict;
  }
};

// Calls a function that a mode was shown, and measures it, if it is to be followed.
PyObject* call_function(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (!check_count(count, 3)) return nullptr;
  PyObject* function = args[0];
  Inputs inputs(args[1], args[2]);
  if (!inputs) return nullptr;
  Cursor* cursor = Cursor::of(self);
  Node* caller = cursor->site;
  PyObject* known = PyDict_GetItemWithError(caller->functions, function);
  if (known == nullptr && PyErr_Occurred()) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) return nullptr;
    PyErr_Clear();  // it cannot be hashed
  }
  Owned site(known ? Py_NewRef(known)
                   : call_method(cursor->functions, names.find, self, function));
  if (!site) return nullptr;
  if (site.get() == Py_None) return PyObject_Call(function, inputs.args.get(), inputs.kwargs.get());
  if (!is_node(site.get())) return nullptr;
  Node* node = Node::of(site.get());
  if (!cursor->tells_functions)
    return measure(self, node, function, inputs.args.get(), inputs.kwargs.get());
  Owned keywords(inputs.kwargs ? Py_NewRef(inputs.kwargs.get()) : PyDict_New());
  if (!keywords) return nullptr;
  return call_method(cursor->functions, names.call, self, site.get(), function, inputs.args.get(), keywords.get());
}

PyObject* measured(PyObject* self, PyObject* args) {
  PyObject *site, *function, *tuple, *dict;
  if (!PyArg_ParseTuple(args, "OOOO", &site, &function, &tuple, &dict) || !is_node(site)) return nullptr;
  Inputs inputs(tuple, dict);
  if (!inputs) return nullptr;
  Node* node = Node::of(site);
  return measure(self, node, function, inputs.args.get(), inputs.kwargs.get());
}

PyObject* py_function_returned(PyObject* self, PyObject* args) {
  PyObject* node;
  long long end_ns;
  if (!PyArg_ParseTuple(args, "OL", &node, &end_ns) || !is_node(node)) return nullptr;
  if (!function_returned(self, Node::of(node), end_ns)) return nullptr;
  Py_RETURN_NONE;
}

}  // namespace
