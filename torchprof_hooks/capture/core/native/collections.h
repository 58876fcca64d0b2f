// What Python calls around its collections of garbage: see core/reference_interceptor.py.
//
// Before Python 3.12, a collection may begin wherever an object is made, also while torch
// iterates over its hooks. No Python code may run there: it could let another thread in,
// and torch raises an error if that thread adds or removes a hook.

#pragma once

#include "clock.h"
#include "tools.h"

#include <memory>
#include <utility>

namespace {

constexpr long kFull = 2;  // the generation whose collection goes through all objects
Nanoseconds collection_began_ns = 0;  // 0: we were told of the begin of no full one
unsigned long main_thread = 0;

struct Collection {
  PyObject* told;
  Nanoseconds took_ns;
};

// A pending call (see Py_AddPendingCall). Owns the Collection that it is given, with the
// reference in there.
int tell_of_collection(void* given) {
  std::unique_ptr<Collection> ended(static_cast<Collection*>(given));
  Owned told(ended->told), took(PyLong_FromLongLong(ended->took_ns));
  Owned done(PyObject_CallOneArg(told.get(), took.get()));
  if (!done) PyErr_WriteUnraisable(told.get());
  return 0;
}

void collection_ended(PyObject* told, Nanoseconds took_ns) {
  auto ended = std::make_unique<Collection>(Collection{Py_NewRef(told), took_ns});
  // Since 3.12, collections begin only where other threads may run anyway. Before, a
  // pending call waits for such a place; Python makes these in the main thread alone.
  if (PY_VERSION_HEX >= 0x030C0000) {
    tell_of_collection(ended.release());
  } else if (PyThread_get_thread_ident() == main_thread &&
             Py_AddPendingCall(tell_of_collection, ended.get()) == 0) {
    ended.release();
  } else {
    Py_DECREF(told);  // ended in another thread, or too many calls are pending: nobody is told
  }
}

// self: the callable that is told how long full collections took.
PyObject* around_collection(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 2) return PyErr_Format(PyExc_TypeError, "takes a moment and a dict");
  Owned generation(PyObject_GetItem(args[1], names.generation));
  if (!generation) return nullptr;
  if (PyLong_AsLong(generation.get()) != kFull) Py_RETURN_NONE;
  Nanoseconds now_ns = clock_ns(), began_ns = std::exchange(collection_began_ns, 0);
  if (PyUnicode_CompareWithASCIIString(args[0], "start") == 0)
    collection_began_ns = now_ns;
  else if (began_ns != 0)
    collection_ended(self, now_ns - began_ns);
  if (PyErr_Occurred()) return nullptr;
  Py_RETURN_NONE;
}

PyMethodDef around_collection_method = {"around_collection", FASTCALL(around_collection), METH_FASTCALL, nullptr};

PyObject* around_collections(PyObject*, PyObject* told) {
  Owned threading(PyImport_ImportModule("threading"));
  if (!threading) return nullptr;
  Owned thread(PyObject_CallMethod(threading.get(), "main_thread", nullptr));
  if (!thread) return nullptr;
  Owned ident(PyObject_GetAttrString(thread.get(), "ident"));
  if (!ident) return nullptr;
  main_thread = PyLong_AsUnsignedLong(ident.get());
  if (PyErr_Occurred()) return nullptr;
  return PyCFunction_New(&around_collection_method, told);
}

}  // namespace
