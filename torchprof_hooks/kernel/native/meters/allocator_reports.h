// Observes each block that the allocators of devices hand out and get back, and blocks that they do
// not have: what they report to torch's profiler, whether it runs or not.
//
// torch hands such reports to one listener, which it takes for its own profiler; so their calls are
// redirected to us, and we call torch. An allocator reports while it has its own lock: the reports of
// one device come one by one, each with what is handed out after it.

#pragma once

#include "accounts.h"
#include "device_bytes.h"
#include "redirection.h"

#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <unordered_map>
#include <vector>

namespace memory {

class AllocatorReports {
 public:
  static AllocatorReports& all() {
    static AllocatorReports& only = *new AllocatorReports();
    return only;
  }

  // does: begins to observe them, also of libraries that were loaded since. Else ends it.
  // Returns whether any library is observed now.
  bool observe(bool does) {
    std::lock_guard<std::mutex> locked(redirecting_);
    int changed = redirect({{usage_, reinterpret_cast<void*>(&usage)}, {failure_, reinterpret_cast<void*>(&failure)}}, does);
    libraries_ += does ? changed : -changed;
    if (libraries_ != 0) return true;
    while (Ledger* left = first_listener()) leave(left);  // nobody would notify them of what is given back
    return false;
  }
  bool is_observed() {
    std::lock_guard<std::mutex> locked(redirecting_);
    return libraries_ != 0;
  }

  // Notifies the ledger of all blocks of a device from now on, until `leave`. allocated: what the device's
  // allocator has handed out already.
  void listen(Ledger* ledger, DeviceBytes* device, int64_t allocated) {
    Locked locked(lock_);
    listeners_.push_back({ledger, device});
    ledger->begin(allocated);
  }
  void leave(Ledger* ledger) {
    Locked locked(lock_);
    auto found = find(ledger);
    if (found == listeners_.end()) return;
    listeners_.erase(found);
    for (auto one = blocks_.begin(); one != blocks_.end();) {
      one->second.forget(ledger);
      one = one->second.is_held() ? std::next(one) : blocks_.erase(one);
    }
    ledger->match(0);
    ledger->turn(false);
  }
  bool is_listening(Ledger* ledger) {
    Locked locked(lock_);
    return find(ledger) != listeners_.end();
  }

  // See `turned_out` in counting_allocator.h. Of a block that was there before, only the bytes of the
  // tensor are known: what the allocator has added to them stays with what nobody has.
  void turned_out(Ledger* ledger, c10::StorageImpl* storage, Kind kind, int32_t code, bool moves) {
    const c10::DataPtr& data = storage->data_ptr();
    void* address = data.get();
    if (address == nullptr || storage->device().is_cpu()) return;
    c10::Allocator* allocator = c10::GetAllocator(storage->device_type());
    c10::DeleterFnPtr free = allocator == nullptr ? nullptr : allocator->raw_deleter();
    bool is_its = free == nullptr || free == data.get_deleter();
    Locked locked(lock_);
    auto listener = find(ledger);
    if (listener == listeners_.end() || listener->device->index() != storage->device().index()) return;
    auto known = blocks_.find(address);
    if (known == blocks_.end() && !is_its) return;
    Block& block = blocks_[address];
    if (known == blocks_.end()) block.bytes = int64_t(storage->nbytes());
    if (Holding* holding = block.of(ledger))
      ledger->turned_out(holding, kind, moves ? code : holding->code);
    else
      ledger->was_in_rest(block.unused(), block.bytes, code, kind);
    if (!block.is_held()) blocks_.erase(address);
  }
  // See `note` in counting_allocator.h.
  void note(Ledger* ledger, c10::StorageImpl* storage, What what, int32_t code) {
    Locked locked(lock_);
    auto known = blocks_.find(const_cast<void*>(storage->data()));
    if (known == blocks_.end()) return;
    if (const Holding* holding = known->second.of(ledger)) ledger->note(what, code, holding);
  }

  // Around a fork: the child has all this, but not the thread that may have the lock.
  void lock() { lock_.lock(); }
  void unlock() { lock_.unlock(); }

 private:
  struct Listener {
    Ledger* ledger;
    DeviceBytes* device;
  };
  using Usage = void (*)(void*, int64_t, size_t, size_t, c10::Device);
  using Failure = void (*)(int64_t, size_t, size_t, c10::Device);

  // In place of c10::reportMemoryUsageToProfiler, and of c10::reportOutOfMemoryToProfiler.
  static void usage(void* address, int64_t bytes, size_t allocated, size_t reserved, c10::Device device) {
    if (!device.is_cpu()) all().changed(address, bytes, int64_t(allocated), device);
    reinterpret_cast<Usage>(all().usage_)(address, bytes, allocated, reserved, device);
  }
  static void failure(int64_t bytes, size_t allocated, size_t reserved, c10::Device device) {
    if (!device.is_cpu()) all().failed(bytes, device);
    reinterpret_cast<Failure>(all().failure_)(bytes, allocated, reserved, device);
  }

  // bytes: below zero for a block that is given back. allocated: what is handed out after that.
  void changed(void* address, int64_t bytes, int64_t allocated, c10::Device device) {
    Locked locked(lock_);
    if (listeners_.empty()) return;
    auto known = blocks_.find(address);
    if (known != blocks_.end()) {
      known->second.given_back();
      blocks_.erase(known);
    }
    for (const Listener& one : listeners_) {
      if (!one.device->is(device)) continue;
      if (bytes <= 0) {
        one.ledger->match(allocated);
        continue;
      }
      Block& block = blocks_[address];
      block.bytes = bytes;
      one.ledger->took(block.unused(), bytes, allocated);
    }
  }
  void failed(int64_t bytes, c10::Device device) {
    Locked locked(lock_);
    for (const Listener& one : listeners_)
      if (one.device->is(device)) one.ledger->failed(bytes);
  }

  Ledger* first_listener() {
    Locked locked(lock_);
    return listeners_.empty() ? nullptr : listeners_.front().ledger;
  }
  std::vector<Listener>::iterator find(Ledger* ledger) {
    return std::find_if(listeners_.begin(), listeners_.end(), [&](const Listener& one) { return one.ledger == ledger; });
  }

  void* const usage_ = find_function("_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
  void* const failure_ = find_function("_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE");
  std::mutex redirecting_;
  int libraries_ = 0;
  SpinLock lock_;  // guards what follows
  std::vector<Listener> listeners_;
  std::unordered_map<void*, Block> blocks_;  // that a listener knows
};

}  // namespace memory
