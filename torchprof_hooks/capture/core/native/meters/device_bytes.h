// Bytes that the allocator of an accelerator has handed out, by its own counters: torch
// asks allocators of all kinds for these since 2.9.

#pragma once

#include "accounts.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace c10 {
struct DeviceAllocator;  // older ones have none
}

namespace memory {

// Null if the allocator does not count. A template, for only what depends on a parameter
// may be missing.
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

// What the allocator of one device says; zeros until the program has put it into use.
// index: below 0, that of the device that is current at the first reading after that.
class DeviceBytes {
 public:
  DeviceBytes(c10::DeviceType kind, int index) : kind_(kind), index_(index) {}

  int index() const { return index_; }

  // The peak is that since the last reading, if it is the highest so far.
  Reading read() {
    Reading now = ask();
    int64_t highest = now.peak, before = highest_.exchange(highest, std::memory_order_relaxed);
    now.peak = highest > before ? std::max(highest, now.level) : now.level;
    return now;
  }
  // Without an effect on what is read later.
  Reading peek() {
    Reading now = ask();
    now.peak = now.level;
    return now;
  }

 private:
  template <class Counting = c10::DeviceAllocator>
  Reading ask() {
    if constexpr (requires { sizeof(Counting); }) {
      try {
        auto* allocator = counting_allocator<Counting>(kind_);
        if (allocator == nullptr || !allocator->initialized()) return {};
        if (index_ < 0) index_ = c10::impl::VirtualGuardImpl(kind_).getDevice().index();
        auto stats = allocator->getDeviceStats(c10::DeviceIndex(index_));
        const auto& handed_out = stats.allocated_bytes[0];
        return {handed_out.allocated, stats.reserved_bytes[0].allocated, handed_out.current, handed_out.peak};
      } catch (const std::exception&) {  // the device has failed, which the program learns
      }
    }
    return {};
  }
  const c10::DeviceType kind_;
  std::atomic<int> index_;
  std::atomic<int64_t> highest_{0};
};

}  // namespace memory
