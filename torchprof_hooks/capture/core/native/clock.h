// What calls are stamped with: the clock, the counter of autograd nodes, and stamps in the
// queue of an accelerator's work.

#pragma once

#include "tools.h"

#include <ATen/SequenceNumber.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <ctime>
#include <memory>
#include <unordered_map>
#include <vector>

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

// A timing event; used again as soon as nothing refers to it any more.
using Stamp = std::shared_ptr<c10::Event>;

// Events that can be used again, by the index of the device: that of its first record is
// an event's for good.
struct UnusedEvents {
  SpinLock lock;
  std::unordered_map<int, std::vector<std::unique_ptr<c10::Event>>> by_device;
};

Stamp take_event(const std::shared_ptr<UnusedEvents>& unused, c10::DeviceType kind, int index) {
  std::unique_ptr<c10::Event> event;
  {
    Locked locked(unused->lock);
    auto& there = unused->by_device[index];
    if (!there.empty()) {
      event = std::move(there.back());
      there.pop_back();
    }
  }
  if (!event) event = std::make_unique<c10::Event>(kind, c10::EventFlag::BACKEND_DEFAULT);
  return Stamp(event.release(), [unused, index](c10::Event* done) {
    std::unique_ptr<c10::Event> owned(done);
    Locked locked(unused->lock);
    unused->by_device[index].push_back(std::move(owned));
  });
}

}  // namespace
