// Counts the bytes of tensors on the CPU, by the thread that takes them.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <forward_list>
#include <mutex>
#include <vector>

#include <c10/core/Allocator.h>

#include "../clock.h"
#include "../tools.h"
#include "ledger.h"

namespace memory {

struct Reading {
  int64_t used = 0;      // handed out since counting began
  int64_t acquired = 0;  // taken from the system, or the device
  int64_t level = 0;     // handed out, and not given back yet by any thread
  int64_t peak = 0;      // the highest level since the reader's last reading
};

class Account;

// A block that is handed out: how large it is, how it is freed, in whose account it is (null: in none, as
// it was there before), and what ledgers know of it, mostly one.
struct Block {
  int64_t bytes = 0;
  c10::DeleterFnPtr free = nullptr;
  Account* taker = nullptr;
  Holding first;
  std::forward_list<Holding> more;

  // A holding that no ledger has yet.
  Holding* unused() {
    if (first.ledger == nullptr) return &first;
    more.emplace_front();
    return &more.front();
  }
  // Null: the ledger does not know the block.
  Holding* of(const Ledger* ledger) {
    if (first.ledger == ledger) return &first;
    for (Holding& one : more)
      if (one.ledger == ledger) return &one;
    return nullptr;
  }
  void given_back() {
    if (first.ledger != nullptr) first.ledger->gave(&first);
    for (Holding& one : more)
      if (one.ledger != nullptr) one.ledger->gave(&one);
  }
  // One ledger is not to know it any more.
  void forget(Ledger* ledger) {
    if (Holding* known = of(ledger)) {
      ledger->gave(known);
      *known = {};
    }
  }
  bool is_held() const {
    auto is_used = [](const Holding& one) { return one.ledger != nullptr; };
    return is_used(first) || std::any_of(more.begin(), more.end(), is_used);
  }
};

// Reads an account, and keeps the peak since its own last reading.
// ledger: is notified of the blocks that the account's thread takes; null: none is.
struct Reader {
  Account* account = nullptr;
  int64_t peak = 0;
  Ledger* ledger = nullptr;
};

// The bytes that one thread has taken, and how many of them were given back. Only that thread writes
// the numbers, but others change the level when they give back, and the peak when they read.
class Account {
 public:
  void took(int64_t bytes) {
    set(used_, get(used_) + bytes);
    int64_t level = level_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    if (level > get(peak_)) set(peak_, level);
  }
  void gave(int64_t bytes) { level_.fetch_sub(bytes, std::memory_order_relaxed); }
  // Notifies the ledgers of a block that the thread has taken.
  void notify(Block* block) {
    if (ledgers_.load(std::memory_order_relaxed) == 0) return;
    Locked locked(lock_);
    for (Reader* one : readers_)
      if (one->ledger != nullptr) one->ledger->took(block->unused(), block->bytes);
  }

  void notify_failure(int64_t bytes) {
    Locked locked(lock_);
    for (Reader* one : readers_)
      if (one->ledger != nullptr) one->ledger->failed(bytes);
  }

  void add_reader(Reader* reader) {
    Locked locked(lock_);
    note_peak();
    readers_.push_back(reader);
    if (reader->ledger != nullptr) ledgers_++;
    reader->account = this;
    reader->peak = get(level_);
  }
  // Which ledger is notified of blocks for the reader; null: none.
  void set_ledger(Reader* reader, Ledger* ledger) {
    Locked locked(lock_);
    ledgers_ += (ledger != nullptr) - (reader->ledger != nullptr);
    reader->ledger = ledger;
  }
  void remove_reader(Reader* reader) {
    Locked locked(lock_);
    if (reader->ledger != nullptr) ledgers_--;
    readers_.erase(std::remove(readers_.begin(), readers_.end(), reader), readers_.end());
  }
  // Whether another thread can take it over: nobody reads it, and all has been given back.
  bool is_free() {
    Locked locked(lock_);
    return readers_.empty() && get(level_) == 0;
  }

  Reading read(Reader* reader) {
    Locked locked(lock_);
    note_peak();
    int64_t level = get(level_);
    Reading found = with(level, reader->peak);
    reader->peak = level;
    return found;
  }
  // The same, but without an effect on the peak of the next reading.
  Reading peek(const Reader* reader) {
    Locked locked(lock_);
    return with(get(level_), std::max(reader->peak, get(peak_)));
  }

 private:
  // What is used is acquired from the system: torch's allocator for the CPU keeps nothing.
  Reading with(int64_t level, int64_t peak) { return {get(used_), get(used_), level, peak}; }
  // Notes the peak until now for all readers, and begins a new one. The caller has `lock_`.
  void note_peak() {
    for (Reader* one : readers_) one->peak = std::max(one->peak, get(peak_));
    set(peak_, get(level_));
  }

  // Atomic, so that other threads never read half of a number.
  using Number = std::atomic<int64_t>;
  static int64_t get(const Number& number) { return number.load(std::memory_order_relaxed); }
  static void set(Number& number, int64_t value) { number.store(value, std::memory_order_relaxed); }

  Number used_{0}, level_{0}, peak_{0};
  std::atomic<int> ledgers_{0};
  SpinLock lock_;  // guards the readers, and their peaks
  std::vector<Reader*> readers_;
};

// All accounts. That of a thread that has ended is given to a new thread once it `is_free`.
// None is ever destroyed: blocks refer to their account until the very end of a process.
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
      mine_ = &nobodys();  // for what this thread still takes and frees while it ends
    }
  };
  static void open() {
    {
      std::lock_guard<std::mutex> locked(mutex());
      auto free = std::find_if(unused().begin(), unused().end(), [](Account* a) { return a->is_free(); });
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

}  // namespace memory
