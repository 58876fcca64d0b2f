// Counts what torch's allocator for the CPU hands out, in the accounts of threads.
//
// While memory is measured, an allocator of ours stands in front of torch's, calls it, and counts.
// torch also reports its allocations itself, but to one listener for each thread, which it
// takes for its own profiler: with ours in that place, torch.profiler would not start, or
// would crash when it ends.

#pragma once

#include "accounts.h"

#include <c10/core/CPUAllocator.h>

#include <pthread.h>

#include <unordered_map>
#include <utility>

namespace memory {

// A block that is handed out: how large it is, how it is freed, and whose account it is in.
struct Block {
  int64_t bytes;
  c10::DeleterFnPtr free;
  Account* taker;
};

// All blocks that are handed out, by address: in parts that have a lock each, as all threads use it.
class Blocks {
 public:
  void insert(void* address, Block block) {
    Shard& shard = of(address);
    Locked locked(shard.lock);
    shard.blocks[address] = block;
  }
  bool take(void* address, Block* block) {
    Shard& shard = of(address);
    Locked locked(shard.lock);
    auto found = shard.blocks.find(address);
    if (found == shard.blocks.end()) return false;
    *block = found->second;
    shard.blocks.erase(found);
    return true;
  }
  // Around a fork: the child has the table, but not the thread that may have a lock of it.
  void lock_all() {
    for (Shard& shard : shards_) shard.lock.lock();
  }
  void unlock_all() {
    for (Shard& shard : shards_) shard.lock.unlock();
  }

 private:
  struct Shard {
    SpinLock lock;
    std::unordered_map<void*, Block> blocks;
  };
  Shard& of(void* address) { return shards_[(reinterpret_cast<uintptr_t>(address) >> 6) % kShards]; }
  static constexpr size_t kShards = 31;
  Shard shards_[kShards];
};

inline Blocks& blocks() {
  static Blocks& all = *new Blocks();
  return all;
}

inline c10::DeleterFnPtr taken_without_us();

inline void give_back(void* address) {
  Block block{0, nullptr, nullptr};
  {
    CountTimer timer(Accounts::here());
    // Out of the table first: once it is freed, another block may get the same address.
    if (blocks().take(address, &block)) {
      block.taker->gave(block.bytes);
    } else {  // was not allocated through us
      block.free = taken_without_us();
    }
  }
  block.free(address);
}

// Calls the allocator behind it (`inner_`). That may be one that somebody has put in front of
// ours, before ours was put in front again: then it calls ours in turn, and such a second call
// goes to `first_`, which was there before ours.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    Turn turn(this);
    if (turn.is_second) return turn.inner->allocate(bytes);
    c10::DataPtr data = turn.inner->allocate(bytes);
    void* address = data.get();
    c10::DeleterFnPtr free = data.get_deleter();
    if (address == nullptr || data.get_context() != address || free == &give_back) return data;
    Account& taker = Accounts::here();
    CountTimer timer(taker);
    blocks().insert(address, {int64_t(bytes), free, &taker});
    (void)data.compare_exchange_deleter(free, &give_back);
    taker.took(int64_t(bytes));
    return data;
  }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override { return Turn(this).inner->is_simple_data_ptr(data); }
  c10::DeleterFnPtr raw_deleter() const override { return Turn(this).inner->raw_deleter() ? &give_back : nullptr; }
  c10::DeleterFnPtr raw_deleter_of_first() const { return first_.load(std::memory_order_relaxed)->raw_deleter(); }
  void copy_data(void* target, const void* source, size_t bytes) const override {
    Turn(this).inner->copy_data(target, source, bytes);
  }

  bool is_counting() const { return c10::GetCPUAllocator() == this; }

  // does: puts itself in front of the current allocator; else goes away again, unless another one was
  // put in front since. Returns whether it is in front now.
  bool count(bool does) {
    std::lock_guard<std::mutex> locked(mutex_);
    c10::Allocator* there = c10::GetCPUAllocator();
    if (does && there != this) {
      c10::Allocator* none = nullptr;
      first_.compare_exchange_strong(none, there);
      inner_.store(there);
      c10::SetCPUAllocator(this);
    } else if (!does && there == this) {
      c10::SetCPUAllocator(inner_.load());
    }
    return is_counting();
  }

 private:
  // Lives while this thread calls the allocator behind us. is_second: that one has called us.
  struct Turn {
    explicit Turn(const CountingAllocator* ours)
        : is_second(std::exchange(is_asking, true)),
          inner((is_second ? ours->first_ : ours->inner_).load(std::memory_order_relaxed)) {}
    Turn(const Turn&) = delete;
    ~Turn() { is_asking = is_second; }
    const bool is_second;
    c10::Allocator* const inner;
    static inline thread_local bool is_asking = false;
  };
  std::atomic<c10::Allocator*> first_{nullptr}, inner_{nullptr};
  std::mutex mutex_;
};

inline CountingAllocator& allocator() {
  static CountingAllocator& one = *[] {
    auto before = [] {
      Accounts::mutex().lock();
      blocks().lock_all();
    };
    auto after = [] {
      blocks().unlock_all();
      Accounts::mutex().unlock();
    };
    pthread_atfork(before, after, after);
    return new CountingAllocator();
  }();
  return one;
}

inline c10::DeleterFnPtr taken_without_us() { return allocator().raw_deleter_of_first(); }

}  // namespace memory
