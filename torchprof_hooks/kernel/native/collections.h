// What Python calls around its collections of garbage: each is an interruption of the calls that are open
// in the thread. See `around_collection` in reference/cursor.py.
//
// Before Python 3.12, a collection may begin wherever an object is made, also while torch
// iterates over its hooks. No Python code may run there: it could let another thread in,
// and torch raises an error if that thread adds or removes a hook.

#pragma once

#include "calls/calls.h"

#include <utility>

namespace {

constexpr long kFull = 2;  // the generation whose collection goes through all objects
Nanoseconds collection_began_ns = 0;  // 0: nobody notified us of the begin of a full one
PyObject* interrupted = nullptr;  // a tuple of cursors

PyObject* around_collection(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 2) return PyErr_Format(PyExc_TypeError, "takes a moment and a dict");
  Owned generation(PyObject_GetItem(args[1], names.generation));
  if (!generation) return nullptr;
  if (PyLong_AsLong(generation.get()) != kFull) Py_RETURN_NONE;
  Nanoseconds now_ns = clock_ns(), began_ns = std::exchange(collection_began_ns, 0);
  if (PyUnicode_CompareWithASCIIString(args[0], "start") == 0) {
    collection_began_ns = now_ns;
  } else if (began_ns != 0 && interrupted != nullptr) {
    for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(interrupted); place++) {
      Cursor* cursor = Cursor::of(PyTuple_GET_ITEM(interrupted, place));
      if (cursor->garbage == nullptr || !works_here(cursor)) continue;
      cursor->garbage->start_ns = began_ns;
      end_entry(cursor, cursor->garbage, now_ns);
    }
  }
  if (PyErr_Occurred()) return nullptr;
  Py_RETURN_NONE;
}

PyObject* interrupt_by_collections(PyObject*, PyObject* cursors) {
  if (!PyTuple_Check(cursors)) return PyErr_Format(PyExc_TypeError, "not a tuple");
  for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(cursors); place++)
    if (!is_a<&cursor_type>(PyTuple_GET_ITEM(cursors, place))) return PyErr_Format(PyExc_TypeError, "not a Cursor");
  Py_XDECREF(std::exchange(interrupted, Py_NewRef(cursors)));
  Py_RETURN_NONE;
}

}  // namespace
