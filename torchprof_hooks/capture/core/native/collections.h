// What Python calls around its collections of garbage: see core/python_limits.py.
//
// A collection may begin wherever an object is made, also in the middle of torch's
// going through its hooks. Nothing of Python's is called there that could let another
// thread in, which may be about to add a hook or to remove one.

#pragma once

#include "clock.h"
#include "tools.h"

#include <memory>
#include <utility>

namespace {

constexpr long kFull = 2;  // the generation of all objects
Nanoseconds collection_began_ns = 0;  // 0: before we were there
unsigned long main_thread = 0;

struct Collection {
  PyObject* told;
  Nanoseconds took_ns;
};

int tell_of_collection(void* given) {
  std::unique_ptr<Collection> ended(static_cast<Collection*>(given));
  Owned told(ended->told), took(PyLong_FromLongLong(ended->took_ns));
  Owned done(PyObject_CallOneArg(told.get(), took.get()));
  if (!done) PyErr_WriteUnraisable(told.get());
  return 0;
}

void collection_ended(PyObject* told, Nanoseconds took_ns) {
  auto ended = std::make_unique<Collection>(Collection{Py_NewRef(told), took_ns});
  // Since 3.12, collections begin only where other threads may come in anyway. Before,
  // that is when what runs goes on; and Python keeps such calls for its main thread.
  if (PY_VERSION_HEX >= 0x030C0000) {
    tell_of_collection(ended.release());
  } else if (PyThread_get_thread_ident() == main_thread &&
             Py_AddPendingCall(tell_of_collection, ended.get()) == 0) {
    ended.release();
  } else {
    Py_DECREF(told);
  }
}

// self: who is told.
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
