// Counts what torch's allocator for the CPU hands out, in the accounts of threads.
//
// While memory is measured, an allocator of ours stands in front of torch's, calls it, and counts.
// torch also reports its allocations itself, but to one listener for each thread, which it
// takes for its own profiler: with ours in that place, torch.profiler would not start, or
// would crash when it ends.

#pragma once

#include "accounts.h"
#include "allocator_reports.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/flat_hash_map.h>

#include <pthread.h>

#include <utility>
#include <vector>

namespace memory {

// All blocks that are handed out, by address: in parts that have a lock each, as all threads use it.
class Blocks {
 public:
  Block* insert(void* address, int64_t bytes, c10::DeleterFnPtr free, Account* taker) {
    Shard& shard = of(address);
    Locked locked(shard.lock);
    if (shard.spare.empty()) {
      Block* more = new Block[kSlab];
      for (size_t n = 0; n < kSlab; n++) shard.spare.push_back(more + n);
    }
    Block* block = shard.spare.back();
    shard.spare.pop_back();
    block->bytes = bytes, block->free = free, block->taker = taker;
    shard.blocks[address] = block;
    return block;
  }
  // Null if there is none.
  Block* take(void* address) {
    Shard& shard = of(address);
    Locked locked(shard.lock);
    auto found = shard.blocks.find(address);
    if (found == shard.blocks.end()) return nullptr;
    Block* block = found->second;
    shard.blocks.erase(found);
    return block;
  }
  // The block that was taken is not needed any more: the next one of this part of the table gets it.
  void recycle(void* address, Block* block) {
    block->first = {};
    block->more.clear();
    Shard& shard = of(address);
    Locked locked(shard.lock);
    shard.spare.push_back(block);
  }
  // Calls `function` with a pointer to the block, which nobody frees meanwhile; null: there is none.
  template <class Function>
  auto with(void* address, Function function) {
    Shard& shard = of(address);
    Locked locked(shard.lock);
    auto found = shard.blocks.find(address);
    return function(found == shard.blocks.end() ? nullptr : found->second);
  }
  // How many there are; and blocks that are kept for later ones.
  std::pair<size_t, size_t> sizes() {
    std::pair<size_t, size_t> found;
    for (Shard& shard : shards_) {
      Locked locked(shard.lock);
      found.first += shard.blocks.size();
      found.second += shard.spare.size();
    }
    return found;
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
    ska::flat_hash_map<const void*, Block*> blocks;
    std::vector<Block*> spare;
  };
  Shard& of(void* address) { return shards_[(reinterpret_cast<uintptr_t>(address) >> 6) % kShards]; }
  static constexpr size_t kShards = 31, kSlab = 64;
  Shard shards_[kShards];
};

inline Blocks& blocks() {
  static Blocks& all = *new Blocks();
  return all;
}

inline c10::DeleterFnPtr taken_without_us();

inline void give_back(void* address) {
  c10::DeleterFnPtr free;
  // Out of the table first: once it is freed, another block may get the same address.
  if (Block* block = blocks().take(address)) {
    if (block->taker != nullptr) block->taker->gave(block->bytes);
    block->given_back();
    free = block->free;
    blocks().recycle(address, block);
  } else {  // was not allocated through us
    free = taken_without_us();
  }
  free(address);
}

// Calls the allocator behind it (`inner_`). That may be one that somebody has put in front of
// ours, before ours was put in front again: then it calls ours in turn, and such a second call
// goes to `first_`, which was there before ours.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    Turn turn(this);
    if (turn.is_second) return turn.inner->allocate(bytes);
    c10::DataPtr data = allocated(turn.inner, bytes);
    void* address = data.get();
    c10::DeleterFnPtr free = data.get_deleter();
    if (address == nullptr || data.get_context() != address || free == &give_back) return data;
    Account& taker = Accounts::here();
    if (!data.compare_exchange_deleter(free, &give_back)) return data;
    Block* block = blocks().insert(address, int64_t(bytes), free, &taker);
    taker.took(int64_t(bytes));
    taker.notify(block);
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
  static c10::DataPtr allocated(c10::Allocator* inner, size_t bytes) {
    try {
      return inner->allocate(bytes);
    } catch (...) {
      Accounts::here().notify_failure(int64_t(bytes));
      throw;
    }
  }
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
      AllocatorReports::all().lock();
      blocks().lock_all();
      Ledger::lock_all();
    };
    auto after = [] {
      Ledger::unlock_all();
      blocks().unlock_all();
      AllocatorReports::all().unlock();
      Accounts::mutex().unlock();
    };
    pthread_atfork(before, after, after);
    return new CountingAllocator();
  }();
  return one;
}

// A tensor turns out to be of this kind. One that the ledger does not know was there before: from now on
// its block is counted, too, if its storage says how it is freed.
// code: of its owner, if the ledger does not know one, or if `moves`.
inline void turned_out(Ledger* ledger, c10::StorageImpl* storage, Kind kind, int32_t code, bool moves) {
  if (!storage->device().is_cpu()) return;
  auto& data = const_cast<c10::DataPtr&>(storage->data_ptr());
  void* address = data.get();
  if (address == nullptr) return;
  int64_t bytes = int64_t(storage->nbytes());
  bool is_known = blocks().with(address, [&](Block* block) {
    if (block == nullptr) return false;
    if (Holding* known = block->of(ledger)) {
      ledger->turned_out(known, kind, moves ? code : known->code);
    } else {
      ledger->was_there(block->unused(), block->bytes, code, kind);
    }
    return true;
  });
  if (is_known) return;
  c10::DeleterFnPtr free = data.get_deleter();
  if (data.get_context() != address || free == nullptr || free == &give_back ||
      !data.compare_exchange_deleter(free, &give_back))
    return ledger->is_there(address, bytes, code, kind);
  ledger->was_there(blocks().insert(address, bytes, free, nullptr)->unused(), bytes, code, kind);
}

// Records what happens to a storage's block, if the ledger knows that.
inline void note(Ledger* ledger, c10::StorageImpl* storage, What what, int32_t code) {
  blocks().with(const_cast<void*>(storage->data()), [&](Block* block) {
    if (const Holding* known = block == nullptr ? nullptr : block->of(ledger)) ledger->note(what, code, known);
    return 0;
  });
}

inline c10::DeleterFnPtr taken_without_us() { return allocator().raw_deleter_of_first(); }

}  // namespace memory
