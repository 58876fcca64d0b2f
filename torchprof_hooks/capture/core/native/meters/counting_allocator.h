// Has torch's allocator for the CPU counted, in the accounts of threads.
//
// While anybody wants to know, torch's allocator is asked through one of ours, which
// counts. torch reports what it allocates as well, but to one listener for each thread,
// and takes whoever that is for a profiler of its own: with another one in that place,
// torch.profiler does not start, or crashes when it ends.

#pragma once

#include "accounts.h"

#include <c10/core/CPUAllocator.h>

#include <pthread.h>

#include <unordered_map>
#include <utility>

namespace memory {

// Blocks that are handed out, by address: how large they are, how they are freed, and who
// has taken them.
struct Block {
  int64_t bytes;
  c10::DeleterFnPtr free;
  Account* taker;
};

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
  // Around a fork: the child has the table, but not whoever is just working on it.
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
    // Out of the table first: as soon as it is free, the address may come again.
    if (blocks().take(address, &block)) {
      block.taker->gave(block.bytes);
    } else {  // taken without us
      block.free = taken_without_us();
    }
  }
  block.free(address);
}

// Asks the allocator behind it. That may be somebody else's by now, who came in front of
// us, and asks us in turn: then what was there first of all is asked.
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

  // Puts itself in front of torch's, or goes away again, where nobody has come since.
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
  // While this thread asks the allocator behind us.
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
