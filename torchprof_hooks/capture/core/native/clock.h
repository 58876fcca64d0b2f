// The clock that calls are stamped with, and the counter of autograd nodes.

#pragma once

#include "tools.h"

#include <ATen/SequenceNumber.h>

#include <cstdint>
#include <ctime>

namespace {

using Nanoseconds = int64_t;

PyObject* other_clock = nullptr;  // stands in for the machine's, in tests

inline Nanoseconds machine_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

Nanoseconds other_ns() {
  PyGILState_STATE state = PyGILState_Ensure();
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyObject* found = PyObject_CallNoArgs(other_clock);
  Nanoseconds now_ns = found ? PyLong_AsLongLong(found) : 0;
  Py_XDECREF(found);
  PyErr_Clear();
  PyErr_Restore(type, value, traceback);
  PyGILState_Release(state);
  return now_ns;
}

inline Nanoseconds clock_ns() {
  return other_clock ? other_ns() : machine_ns();
}

inline int64_t next_number() {
  return int64_t(at::sequence_number::peek());
}

PyObject* set_clock(PyObject*, PyObject* clock) {
  PyObject* before = other_clock;
  other_clock = clock == Py_None ? nullptr : Py_NewRef(clock);
  Py_XDECREF(before);
  Py_RETURN_NONE;
}

}  // namespace
