// What happens to blocks of memory, one by one, while that is recorded: for a step or two of a run.

#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "../clock.h"

namespace memory {

// In the order of `What` in record/memory_events.py.
enum What : uint8_t {
  kWasInUse,    // all along: the bytes of an owner and kind
  kTook,        // a block
  kGave,        // a block
  kTurnedOut,   // a block is of another kind, or of another owner
  kCalled,      // a module
  kReturned,    // a module
  kInput,       // a block is one of the call that has begun last
  kOutput,      // a block is one of the call that has ended last
};

// serial: of the block; 0 if it was there before the ledger. code: of the call that runs, or of the owner
// of what was in use. kind, was: what the block is from now on, and what it was.
struct MemoryEvent {
  int64_t serial, bytes, at_ns;
  int32_t code;
  What what;
  uint8_t kind, was;
};

// The holder of the ledger's lock changes it.
class MemoryEvents {
 public:
  bool is_on() const { return is_on_; }
  void turn(bool on) {
    is_on_ = on;
    all_ = {};
  }
  // Only while it is on.
  void add(What what, int64_t serial, int64_t bytes, int32_t code, uint8_t kind = 0, uint8_t was = 0) {
    if (all_.size() >= kMost) return turn(false);
    all_.push_back({serial, bytes, machine_ns(), code, what, kind, was});
  }
  // All, and nothing is recorded any more; none: there were too many.
  std::vector<MemoryEvent> take() {
    is_on_ = false;
    return std::exchange(all_, {});
  }

 private:
  static constexpr size_t kMost = 500'000;  // 16 MB
  bool is_on_ = false;
  std::vector<MemoryEvent> all_;
};

}  // namespace memory
