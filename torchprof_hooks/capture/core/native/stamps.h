// Stamps in the queue of an accelerator's work.

#pragma once

#include "tools.h"

#include <c10/core/Event.h>

#include <memory>
#include <unordered_map>
#include <vector>

namespace {

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
