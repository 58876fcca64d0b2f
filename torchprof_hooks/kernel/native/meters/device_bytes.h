// Bytes that the allocator of an accelerator has handed out, by its own counters. Since 2.9,
// torch has one interface to these for all kinds of devices; before, Python is asked.

#pragma once

#include "accounts.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <cstring>
#include <new>

namespace c10 {
struct DeviceAllocator;  // for older torch, which has no such class
}

namespace memory {

// torch returns structures by value: who has compiled the call decides how much room there is, and who has
// compiled the function how much is written. How many bytes of a `T` that `function` returns by value it has written, up to its last one; more than
// sizeof(T) if it takes T to be larger. The object is not destroyed: whether it is one is not known.
template <class T, class Function>
size_t written_bytes(Function function, T** object) {
  constexpr size_t kMore = 1024;
  constexpr unsigned char kNeverWritten = 0xA5;
  alignas(T) static thread_local unsigned char room[sizeof(T) + kMore];
  std::memset(room, kNeverWritten, sizeof room);
  *object = new (room) T(function());  // into its place: nothing is copied
  std::atomic_signal_fence(std::memory_order_seq_cst);
  size_t found = sizeof room;
  while (found > 0 && room[found - 1] == kNeverWritten) found--;
  return found;
}

// The allocator of a kind of devices; null if it does not count. A template, as `requires`
// finds out whether a class is missing only where that depends on a parameter.
template <class Counting = c10::DeviceAllocator>
Counting* counting_allocator(c10::DeviceType kind) {
  if constexpr (requires { sizeof(Counting); }) {
    try {
      return dynamic_cast<Counting*>(c10::GetAllocator(kind));
    } catch (const std::exception&) {
    }
  }
  return nullptr;
}

// The counters of one device's allocator; zeros until the program uses that allocator.
// index: if below 0, the device is the one that is current at the first reading after that.
class DeviceBytes {
 public:
  // counter: where the owner of this has an `AllocatorCounter`, to be read if C++ cannot ask the
  // allocator; null once a collection of garbage has cleared the owner.
  DeviceBytes(c10::DeviceType kind, int index, PyObject*& counter)
      : kind_(kind), index_(index), counter_(counter), asks_python_(counting_allocator(kind) == nullptr) {}

  int index() const { return index_; }
  // Whether it is this device. If its index is not known yet, it is the first one that is asked for.
  bool is(c10::Device device) {
    int unknown = -1;
    if (device.type() == kind_) index_.compare_exchange_strong(unknown, device.index());
    return device.type() == kind_ && device.index() == index_;
  }

  // The allocator only knows its highest peak. If that has risen since the last reading, it
  // is the peak since then; if not, the present level stands for it.
  Reading read() {
    Reading now = ask();
    int64_t highest = now.peak, before = highest_.exchange(highest, std::memory_order_relaxed);
    now.peak = highest > before ? std::max(highest, now.level) : now.level;
    return now;
  }
  // The same, without an effect on later readings: the present level stands for the peak.
  Reading peek() {
    Reading now = ask();
    now.peak = now.level;
    return now;
  }

 private:
  template <class Counting = c10::DeviceAllocator>
  Reading ask() {
    if (asks_python_) return ask_python();
    if constexpr (requires { sizeof(Counting); }) {
      try {
        auto* allocator = counting_allocator<Counting>(kind_);
        if (allocator == nullptr || !allocator->initialized()) return {};
        if (index_ < 0) index_ = c10::impl::VirtualGuardImpl(kind_).getDevice().index();
        auto stats = [&] { return allocator->getDeviceStats(c10::DeviceIndex(index_)); };
        if (!is_checked_ && !check(stats)) return ask_python();
        return reading(stats());
      } catch (const std::exception&) {  // the device has failed: the program learns that itself
      }
    }
    return {};
  }
  template <class Stats>
  static Reading reading(const Stats& stats) {
    const auto& handed_out = stats.allocated_bytes[0];
    return {handed_out.allocated, stats.reserved_bytes[0].allocated, handed_out.current, handed_out.peak};
  }
  // Whether the counters are what our headers say, which grew with torch 2.13. If not, Python is asked from now on.
  template <class Function>
  bool check(Function stats) {
    using Stats = decltype(stats());
    Stats* read;
    if (written_bytes<Stats>(stats, &read) == sizeof(Stats)) {
      read->~Stats();
      is_checked_ = true;
    } else {
      asks_python_ = true;
    }
    return is_checked_;
  }
  // What cannot be read counts as nothing: the program learns itself that its device has failed.
  Reading ask_python() {
    WithGil gil;
    if (counter_ == nullptr) return {};
    Owned counter(Py_NewRef(counter_));
    Owned read(PyObject_CallMethod(counter.get(), "read", nullptr));
    long long used = 0, acquired = 0, current = 0, peak = 0;
    if (!read || !PyArg_ParseTuple(read.get(), "LLLL", &used, &acquired, &current, &peak)) {
      raise_others_soon();
      return {};
    }
    return {used, acquired, current, peak};
  }
  const c10::DeviceType kind_;
  std::atomic<int> index_;
  PyObject*& counter_;
  std::atomic<bool> asks_python_;
  std::atomic<bool> is_checked_{false};
  std::atomic<int64_t> highest_{0};
};

}  // namespace memory
