// What calls are stamped with: the clock, the counter of autograd nodes, and stamps in the
// queue of an accelerator's work.

#pragma once

#include "tools.h"

#include <ATen/SequenceNumber.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <ctime>
#include <map>
#include <memory>
#include <utility>
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

//: Events that are kept, of each device. One that is far behind needs more for a while.
constexpr size_t kMostUnused = 4096;

// Events that can be used again, of all profiles of the process, for making one takes
// longer than recording it. By device: that of its first record is an event's for good.
// Those that are here are never destroyed: when a process ends, their device may be gone.
struct UnusedEvents {
  SpinLock lock;
  std::map<std::pair<c10::DeviceType, int>, std::vector<c10::Event*>> by_device;
};

inline UnusedEvents& unused_events() {
  static UnusedEvents& all = *new UnusedEvents();
  return all;
}

Stamp take_event(c10::DeviceType kind, int index) {
  std::pair key(kind, index);
  c10::Event* event = nullptr;
  {
    Locked locked(unused_events().lock);
    auto& there = unused_events().by_device[key];
    if (!there.empty()) {
      event = there.back();
      there.pop_back();
    }
  }
  if (event == nullptr) event = new c10::Event(kind, c10::EventFlag::BACKEND_DEFAULT);
  return Stamp(event, [key](c10::Event* done) {
    std::unique_ptr<c10::Event> too_many(done);
    Locked locked(unused_events().lock);
    auto& there = unused_events().by_device[key];
    if (there.size() < kMostUnused) there.push_back(too_many.release());
  });
}

}  // namespace
