// What calls are stamped with: the clock, and the counter of autograd nodes.

#pragma once

#include "tools.h"

#include <ATen/SequenceNumber.h>

#include <cstdint>
#include <ctime>

namespace {

using Nanoseconds = int64_t;

// A callable that stands in for the machine's clock: in tests, or if somebody has replaced
// perf_counter_ns.
PyObject* other_clock = nullptr;

#ifdef __APPLE__
constexpr clockid_t kClock = CLOCK_UPTIME_RAW;  // that of perf_counter_ns, too
#else
constexpr clockid_t kClock = CLOCK_MONOTONIC;
#endif

inline Nanoseconds machine_ns() {
  timespec now;
  clock_gettime(kClock, &now);
  return int64_t(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

// Waits for the GIL, so no SpinLock may be held here. What the clock raises is dropped.
Nanoseconds other_ns() {
  WithGil gil;
  PyObject* found = PyObject_CallNoArgs(other_clock);
  if (found == nullptr) {  // the handler of a signal has raised: ask again
    PyObject* raised = take_raised();
    found = PyObject_CallNoArgs(other_clock);
    raise_soon(raised);
  }
  Owned owned(found);
  return found ? PyLong_AsLongLong(found) : 0;
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
