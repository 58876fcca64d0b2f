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

// A callable that stands in for the machine's clock: in tests, or if somebody has replaced
// perf_counter_ns.
PyObject* other_clock = nullptr;

inline Nanoseconds machine_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
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

// A timing event. With the last reference to it, it goes back to `unused_events`.
using Stamp = std::shared_ptr<c10::Event>;

//: The most unused events that are kept for each device. While a device is far behind, more are
//: in use; the surplus is destroyed as it comes back.
constexpr size_t kMostUnused = 4096;

// Events that all profiles of the process use again: making one takes longer than recording it.
// By device, as an event stays on the device of its first record. Events in here are never
// destroyed: when the process ends, their device may be gone already.
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
    std::unique_ptr<c10::Event> too_many(done);  // before the lock, to be destroyed after its release
    Locked locked(unused_events().lock);
    auto& there = unused_events().by_device[key];
    if (there.size() < kMostUnused) there.push_back(too_many.release());
  });
}

}  // namespace
