// Who holds the memory: the blocks in use, by the call that took them and by what they turned out to
// be; now, and when most was in use.

#pragma once

#include <pthread.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <vector>

#include "../backward/carried.h"
#include "../node.h"
#include "../tools.h"
#include "memory_events.h"

namespace memory {

// What a block is. In the order of `MEMORY_KINDS` in profiles/memory.py.
enum Kind : uint8_t { kTemporary, kActivation, kGradient, kOptimizerState, kParameter, kBuffer, kOther, kKinds };

class Ledger;

// What one ledger knows of one block. Those whose kind is not known yet are in a list, oldest first.
// serial: the number of the block in its ledger; 0: it was there before.
struct Holding {
  Ledger* ledger = nullptr;
  int64_t bytes = 0, serial = 0;
  Holding *before = nullptr, *after = nullptr;
  int32_t code = 0;
  Kind kind = kTemporary;
  bool is_listed = false;
};

// The blocks that one thread takes while it is on, and those of others that it is notified of; of a device,
// all that its allocator hands out.
//
// A cell has the bytes in use of one owner and kind. Nothing is copied when more is in use than ever
// before: the ledger counts such moments, and a cell that changes saves its bytes if they are still
// those of the last such moment. So what was in use then adds up exactly, whatever is freed later.
//
// Lives until it is closed, and the last of its blocks is freed: other threads may free them.
class Ledger {
 public:
  Ledger() {
    std::lock_guard<std::mutex> locked(all_mutex());
    all().push_back(this);
  }
  Ledger(const Ledger&) = delete;

  // Blocks belong to the call at the node that `site` points to, a cursor's; null: to the outermost one.
  void follow(const Relaxed<Node*>* site) {
    Locked locked(lock_);
    site_ = site;
    thread_ = pthread_self();
  }
  // The cursor is about to go.
  void unfollow(const Relaxed<Node*>* site) {
    Locked locked(lock_);
    if (site_ == site) site_ = nullptr;
  }

  void turn(bool on) {
    Locked locked(lock_);
    has_missed_ |= on && has_stopped_;
    has_stopped_ |= !on && is_on_;
    is_on_ = on;
  }
  // Nobody reads it any more.
  void close() {
    bool is_last;
    {
      Locked locked(lock_);
      is_on_ = false;
      is_closed_ = true;
      is_last = holdings_ == 0;
    }
    if (is_last) delete this;
  }

  void took(Holding* holding, int64_t bytes) {
    Locked locked(lock_);
    if (!is_on_) return;
    hold(holding, bytes, code_here(), kTemporary, ++serial_);
    list(holding);
    if (events_.is_on()) events_.add(kTook, serial_, bytes, holding->code);
    rose(holding->code);
  }
  void gave(Holding* holding) {
    bool is_last;
    {
      Locked locked(lock_);
      if (holding->is_listed) unlist(holding);
      change(holding->code, holding->kind, -holding->bytes);
      level_ -= holding->bytes;
      if (events_.is_on()) events_.add(kGave, holding->serial, holding->bytes, code_here(), holding->kind);
      is_last = --holdings_ == 0 && is_closed_;
    }
    if (is_last) delete this;
  }
  // A block has been there all along; or it is not known since when, if the ledger was off meanwhile: then
  // it counts from now on.
  void was_there(Holding* holding, int64_t bytes, int32_t code, Kind kind) {
    Locked locked(lock_);
    hold(holding, bytes, code, kind, has_missed_ ? ++serial_ : 0);
    has_more(code, kind, bytes);
    if (events_.is_on()) events_.add(kWasInUse, 0, bytes, code, kind);
  }
  // The same, of one of which no news ever comes.
  void is_there(const void* address, int64_t bytes, int32_t code, Kind kind) {
    Locked locked(lock_);
    if (!untracked_.insert(address).second) return;
    change(code, kind, bytes);
    level_ += bytes;
    has_more(code, kind, bytes);
    if (events_.is_on()) events_.add(kWasInUse, 0, bytes, code, kind);
  }

  // Of a device, the ledger is notified of the blocks of all threads, and of how much the allocator has handed
  // out. What it does not know is the rest: it was there before, and belongs to nobody, until a tensor is found in it.

  // Begins to observe blocks. allocated: what the allocator has handed out.
  void begin(int64_t allocated) {
    Locked locked(lock_);
    is_on_ = true;
    rest_serial_ = ++serial_;
    change_rest(allocated);
  }
  // allocated: with this block.
  void took(Holding* holding, int64_t bytes, int64_t allocated) {
    Locked locked(lock_);
    change_rest(allocated - bytes);
    bool is_its = works_here();
    hold(holding, bytes, is_its ? code_here() : 0, kTemporary, ++serial_);
    if (events_.is_on()) events_.add(kTook, serial_, bytes, holding->code);
    is_its ? list(holding) : move(holding, kOther, 0);
    rose(holding->code);
  }
  // A block was given back of which the ledger may not have known, or not how large it was.
  void match(int64_t allocated) {
    Locked locked(lock_);
    change_rest(allocated);
  }
  // A part of the rest is a block.
  void was_in_rest(Holding* holding, int64_t bytes, int32_t code, Kind kind) {
    Locked locked(lock_);
    if (bytes > rest_) return;
    rest_ -= bytes;
    *holding = Holding{this, bytes, rest_serial_, nullptr, nullptr, 0, kOther, false};
    holdings_++;
    move(holding, kind, code);
  }
  // Whether it was notified of a block since it began.
  bool has_observed() {
    Locked locked(lock_);
    return serial_ > rest_serial_;
  }
  // Whether what it knows adds up: not if blocks were given back without a report.
  bool is_right() {
    Locked locked(lock_);
    return !is_wrong_;
  }

  // A block turns out to be of this kind, and of the owner with this code.
  void turned_out(Holding* holding, Kind kind, int32_t code) {
    Locked locked(lock_);
    if (holding->is_listed) unlist(holding);
    move(holding, kind, code);
  }
  // The blocks whose kind is not known turn out to be what calls with their owner's code make; of those
  // with code 255, nothing is known yet. From the first activation on, what was made outside of modules
  // (`kOutside`) is a part of forward, too; before that, it is something else.
  void settle(const uint8_t* kinds, size_t count) {
    Locked locked(lock_);
    bool has_begun = false;
    for (Holding *one = first_, *next; one != nullptr; one = next) {
      next = one->after;
      uint8_t kind = size_t(one->code) < count ? kinds[one->code] : uint8_t(kOther);
      if (kind == kUnknown) continue;
      has_begun |= kind == kActivation;
      if (kind == kOutside) kind = has_begun ? kActivation : kOther;
      unlist(one);
      move(one, Kind(kind), one->code);
    }
  }

  // Calls `function` with the code, the kind and the bytes of each cell that is not empty.
  template <class Function>
  void each_at_peak(Function function) {
    Locked locked(lock_);
    each_cell([&](int32_t code, Kind kind, const Cell& cell) {
      if (int64_t bytes = cell.epoch == epoch_ ? cell.saved : cell.now) function(code, kind, bytes);
    });
  }
  template <class Function>
  void each_now(Function function) {
    Locked locked(lock_);
    each_cell([&](int32_t code, Kind kind, const Cell& cell) {
      if (cell.now != 0) function(code, kind, cell.now);
    });
  }
  // A step has ended. Returns the most that was in use since the last time.
  int64_t step_ended() {
    Locked locked(lock_);
    ++failure_.steps_ended;
    return std::exchange(step_peak_, level_);
  }
  // There was no memory for a block. What is in use now is kept apart.
  void failed(int64_t bytes) {
    Locked locked(lock_);
    if (!is_on_) return;
    failure_ = {bytes, works_here() ? code_here() : 0, 0, {}};
    each_cell([&](int32_t code, Kind kind, const Cell& cell) {
      if (cell.now != 0) failure_.held.push_back({code, kind, cell.now});
    });
  }
  struct Failure {
    int64_t bytes = 0;  // that were asked for; 0: there was none
    int32_t code = 0;
    int64_t steps_ended = 0;  // since then
    std::vector<std::array<int64_t, 3>> held;  // code, kind, bytes
  };
  Failure failure() {
    Locked locked(lock_);
    return failure_;
  }
  // How many cells there is room for, and how many were used.
  std::pair<size_t, size_t> sizes() {
    Locked locked(lock_);
    return {(sites_.size() + named_.size()) * kKinds, used_cells_};
  }
  // Begins to record what happens to blocks; what was recorded before is dropped.
  void record(bool does) {
    Locked locked(lock_);
    events_.turn(does);
    if (!does) return;
    each_cell([&](int32_t code, Kind kind, const Cell& cell) {
      if (cell.now != 0) events_.add(kWasInUse, 0, cell.now, code, kind);
    });
  }
  std::vector<MemoryEvent> take_events() {
    Locked locked(lock_);
    return events_.take();
  }
  // code: of the call that this is about. holding: null for what is about no block.
  void note(What what, int32_t code, const Holding* holding = nullptr) {
    Locked locked(lock_);
    if (events_.is_on()) events_.add(what, holding ? holding->serial : 0, holding ? holding->bytes : 0, code);
  }
  int64_t level() { return read(level_); }
  int64_t peak() { return read(peak_); }
  int64_t peak_code() { return read(peak_code_); }
  // Grows whenever more is in use than ever before.
  int64_t epoch() { return read(epoch_); }

  // Around a fork: the child has the ledgers, but not the thread that may have the lock of one.
  static void lock_all() {
    all_mutex().lock();
    for (Ledger* one : all()) one->lock_.lock();
  }
  static void unlock_all() {
    for (Ledger* one : all()) one->lock_.unlock();
    all_mutex().unlock();
  }

  static constexpr uint8_t kUnknown = 255, kOutside = 254;

 private:
  struct Cell {
    int64_t now = 0, saved = 0, epoch = 0;
  };
  struct Cells {
    Cell by_kind[kKinds];
  };

  ~Ledger() {
    std::lock_guard<std::mutex> locked(all_mutex());
    for (Ledger*& one : all())
      if (one == this) {
        one = all().back();
        all().pop_back();
        break;
      }
  }
  static std::mutex& all_mutex() {
    static std::mutex& one = *new std::mutex();
    return one;
  }
  static std::vector<Ledger*>& all() {
    static std::vector<Ledger*>& every = *new std::vector<Ledger*>();
    return every;
  }

  int64_t read(const int64_t& number) {
    Locked locked(lock_);
    return number;
  }
  int32_t code_here() const {
    const Node* site = site_ == nullptr ? nullptr : static_cast<Node*>(*site_);
    return site == nullptr ? 0 : int32_t(site->code);
  }
  Cell& cell(int32_t code, Kind kind) {
    std::vector<Cells>& cells = code < 0 ? named_ : sites_;
    size_t place = size_t(code < 0 ? -(code + 1) : code);
    if (place >= cells.size()) cells.resize(place + 1);
    return cells[place].by_kind[kind];
  }
  template <class Function>
  void each_cell(Function function) const {
    for (size_t place = 0; place < sites_.size(); place++)
      for (int kind = 0; kind < kKinds; kind++) function(int32_t(place), Kind(kind), sites_[place].by_kind[kind]);
    for (size_t place = 0; place < named_.size(); place++)
      for (int kind = 0; kind < kKinds; kind++) function(-int32_t(place) - 1, Kind(kind), named_[place].by_kind[kind]);
  }
  // An owner has so many bytes more of a kind.
  void change(int32_t code, Kind kind, int64_t bytes) {
    Cell& found = cell(code, kind);
    used_cells_ += found.epoch == 0;
    if (found.epoch != epoch_) found.saved = found.now, found.epoch = epoch_;
    found.now += bytes;
  }
  // It has had them at the peak, too.
  void add_to_peak(int32_t code, Kind kind, int64_t bytes) {
    Cell& found = cell(code, kind);
    if (found.epoch == epoch_) found.saved += bytes;
  }
  // What was found is a part of the peak, too, unless it may have come later.
  void has_more(int32_t code, Kind kind, int64_t bytes) {
    if (has_missed_) return rose(code);
    add_to_peak(code, kind, bytes);
    peak_ += bytes;
  }
  bool works_here() const {
    return pthread_equal(thread_, pthread_self()) || is_carried_here(site_);
  }
  // The level has risen, in the call with this code.
  void rose(int32_t code) {
    if (level_ > step_peak_) step_peak_ = level_;
    if (level_ <= peak_) return;
    peak_ = level_;
    peak_code_ = code;
    peak_serial_ = serial_;
    epoch_++;
  }
  // So that the level is this.
  void change_rest(int64_t level) {
    int64_t bytes = level - level_;
    if (bytes == 0) return;
    change(0, kOther, bytes);
    if (events_.is_on()) events_.add(bytes < 0 ? kGave : kWasInUse, 0, std::abs(bytes), 0, kOther);
    rest_ += bytes;
    level_ = level;
    is_wrong_ |= rest_ < 0;
    rose(0);
  }
  void hold(Holding* holding, int64_t bytes, int32_t code, Kind kind, int64_t serial) {
    *holding = Holding{this, bytes, serial, nullptr, nullptr, code, kind, false};
    change(code, kind, bytes);
    level_ += bytes;
    holdings_++;
  }
  void move(Holding* holding, Kind kind, int32_t code) {
    if (kind == holding->kind && code == holding->code) return;
    if (events_.is_on()) events_.add(kTurnedOut, holding->serial, holding->bytes, code, kind, holding->kind);
    change(holding->code, holding->kind, -holding->bytes);
    change(code, kind, holding->bytes);
    if (holding->serial <= peak_serial_) {  // it is alive, and was there at the peak
      add_to_peak(holding->code, holding->kind, -holding->bytes);
      add_to_peak(code, kind, holding->bytes);
    }
    holding->kind = kind;
    holding->code = code;
  }
  void list(Holding* holding) {
    holding->is_listed = true;
    holding->before = last_;
    (last_ == nullptr ? first_ : last_->after) = holding;
    last_ = holding;
  }
  void unlist(Holding* holding) {
    holding->is_listed = false;
    (holding->before == nullptr ? first_ : holding->before->after) = holding->after;
    (holding->after == nullptr ? last_ : holding->after->before) = holding->before;
    holding->before = holding->after = nullptr;
  }

  SpinLock lock_;
  const Relaxed<Node*>* site_ = nullptr;
  pthread_t thread_ = pthread_self();  // of the cursor
  bool is_on_ = false, is_closed_ = false, is_wrong_ = false;
  bool has_stopped_ = false, has_missed_ = false;  // whether it was turned off, and on again
  int64_t rest_ = 0, rest_serial_ = 0;
  int64_t level_ = 0, step_peak_ = 0, peak_ = 0, peak_code_ = 0, peak_serial_ = 0, epoch_ = 1, serial_ = 0, holdings_ = 0;
  Holding *first_ = nullptr, *last_ = nullptr;
  std::vector<Cells> sites_, named_;  // by code; those below zero have no call of their own
  std::unordered_set<const void*> untracked_;
  size_t used_cells_ = 0;
  Failure failure_;
  MemoryEvents events_;
};

}  // namespace memory
