// Bytes of tensors on the CPU, to the byte, by the thread that takes and frees them.
//
// While anybody wants to know, torch's allocator is asked through one of ours, which
// counts. torch reports what it allocates as well, but to one listener for each thread,
// and takes whoever that is for a profiler of its own: with another one in that place,
// torch.profiler does not start, or crashes when it ends.

#pragma once

#include <c10/core/CPUAllocator.h>

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "../tools.h"

namespace memory {

struct Reading {
  int64_t used;   // handed out since counting began
  int64_t level;  // of that, what has not been given back, by this thread
  int64_t peak;   // the highest level since the reader's last reading
};

class Account;

// Somebody who reads an account, and wants to know its peaks since the last time.
struct Reader {
  Account* account = nullptr;
  int64_t peak = 0;
};

// What one thread has taken and given back. Written by that thread alone, but for the
// list of readers.
class Account {
 public:
  void took(int64_t bytes) {
    add(used_, bytes);
    add(level_, bytes);
    if (get(level_) > get(peak_)) set(peak_, get(level_));
  }
  void gave(int64_t bytes) { add(level_, -bytes); }

  void add_reader(Reader* reader) {
    Locked locked(lock_);
    tell_peak();
    readers_.push_back(reader);
    reader->account = this;
    reader->peak = get(level_);
  }
  void remove_reader(Reader* reader) {
    Locked locked(lock_);
    readers_.erase(std::remove(readers_.begin(), readers_.end(), reader), readers_.end());
  }
  bool is_read() {
    Locked locked(lock_);
    return !readers_.empty();
  }

  Reading read(Reader* reader) {
    Locked locked(lock_);
    tell_peak();
    int64_t level = get(level_);
    Reading found{get(used_), level, reader->peak};
    reader->peak = level;
    return found;
  }
  // The same, but the time until now is not over.
  Reading peek(const Reader* reader) {
    Locked locked(lock_);
    return {get(used_), get(level_), std::max(reader->peak, get(peak_))};
  }

 private:
  // Of the time until now; from here on, it is another one.
  void tell_peak() {
    for (Reader* one : readers_) one->peak = std::max(one->peak, get(peak_));
    set(peak_, get(level_));
  }

  // Not read-modify-write: only its own thread writes. Others see whole numbers.
  using Number = std::atomic<int64_t>;
  static int64_t get(const Number& number) { return number.load(std::memory_order_relaxed); }
  static void set(Number& number, int64_t value) { number.store(value, std::memory_order_relaxed); }
  static void add(Number& number, int64_t value) { set(number, get(number) + value); }

  Number used_{0}, level_{0}, peak_{0};
  SpinLock lock_;
  std::vector<Reader*> readers_;
};

// All there are. Those of threads that have ended are given to others, unless somebody
// reads them. None is ever freed: blocks are given back until the very end of a process.
class Accounts {
 public:
  static Account& here() {
    if (mine_ == nullptr) open();
    return *mine_;
  }
  static std::mutex& mutex() {
    static std::mutex& one = *new std::mutex();
    return one;
  }

 private:
  struct Lifetime {
    ~Lifetime() {
      std::lock_guard<std::mutex> locked(mutex());
      unused().push_back(mine_);
      mine_ = &nobodys();  // for what is freed after this
    }
  };
  static void open() {
    {
      std::lock_guard<std::mutex> locked(mutex());
      auto free = std::find_if(unused().begin(), unused().end(), [](Account* a) { return !a->is_read(); });
      if (free != unused().end()) {
        mine_ = *free;
        unused().erase(free);
      } else {
        mine_ = new Account();
      }
    }
    static thread_local Lifetime lifetime;
    (void)lifetime;
  }
  static std::vector<Account*>& unused() {
    static std::vector<Account*>& all = *new std::vector<Account*>();
    return all;
  }
  static Account& nobodys() {
    static Account& one = *new Account();
    return one;
  }
  static inline thread_local Account* mine_ = nullptr;
};

// Blocks that are handed out, by address: how large they are, and how they are freed.
struct Block {
  int64_t bytes;
  c10::DeleterFnPtr free;
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
  Block block{0, nullptr};
  // Out of the table first: as soon as it is free, the address may come again.
  if (blocks().take(address, &block)) {
    Accounts::here().gave(block.bytes);
  } else {  // taken without us
    block.free = taken_without_us();
  }
  block.free(address);
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr data = inner()->allocate(bytes);
    void* address = data.get();
    c10::DeleterFnPtr free = data.get_deleter();
    if (address == nullptr || data.get_context() != address || free == &give_back) return data;
    blocks().insert(address, {int64_t(bytes), free});
    (void)data.compare_exchange_deleter(free, &give_back);
    Accounts::here().took(int64_t(bytes));
    return data;
  }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override { return inner()->is_simple_data_ptr(data); }
  c10::DeleterFnPtr raw_deleter() const override { return inner()->raw_deleter() ? &give_back : nullptr; }
  c10::DeleterFnPtr raw_deleter_of_inner() const { return inner()->raw_deleter(); }
  void copy_data(void* target, const void* source, size_t bytes) const override {
    inner()->copy_data(target, source, bytes);
  }

  bool is_counting() const { return c10::GetCPUAllocator() == this; }

  // Puts itself in front of torch's, or goes away again, where nobody has come since.
  bool count(bool does) {
    std::lock_guard<std::mutex> locked(mutex_);
    c10::Allocator* there = c10::GetCPUAllocator();
    if (does && there != this) {
      inner_.store(there);
      c10::SetCPUAllocator(this);
    } else if (!does && there == this) {
      c10::SetCPUAllocator(inner());
    }
    return is_counting();
  }

 private:
  c10::Allocator* inner() const { return inner_.load(std::memory_order_relaxed); }
  std::atomic<c10::Allocator*> inner_{nullptr};
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

inline c10::DeleterFnPtr taken_without_us() { return allocator().raw_deleter_of_inner(); }

}  // namespace memory
