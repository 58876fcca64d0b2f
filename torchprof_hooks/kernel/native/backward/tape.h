// Which call made which autograd node.

#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <vector>

namespace {

constexpr int64_t kNone = -1;         // no entry
constexpr int64_t kOpen = INT64_MAX;  // as the end of a call that is open

// A call, and the numbers [low, high) that nodes had which were made while it was open.
struct TapeEntry {
  int64_t low, high;
  int64_t parent;    // the call around it, see `Tape::parent_of`
  int32_t code;      // of the node of the tree of calls
  bool is_backward;  // an owner in a pass that makes a graph, which owns what the pass makes
};

// A thread's bounded list of its calls, in the order in which they began, by absolute indices. A
// node belongs to the innermost call whose numbers its own is among: nothing has to be written
// into nodes, and calls that made none leave nothing behind.
//
// When it is full, it forgets its oldest call. But calls around the oldest one that is kept move to
// `elders_`, where each is around the next: so a call that stays open for long keeps its nodes.
class Tape {
 public:
  static constexpr int64_t kMost = 1 << 18;  // 8 MiB

  // outer: if the engine runs a part of a pass in this thread, the open call in the tape of the
  // followed thread; kNone: there is none, or this is that tape.
  int64_t open(int64_t low, int64_t code, bool is_backward = false, int64_t outer = kNone) {
    if (head_ - tail_ == int64_t(ring_.size())) make_room();
    int64_t parent = top_ == kNone && outer != kNone ? in_other(outer) : top_;
    at(head_) = {low, kOpen, parent, int32_t(code), is_backward};
    return top_ = head_++;
  }

  // Closes the call, and all that are still open inside of it.
  void close(int64_t index, int64_t high) {
    while (top_ >= index) {
      TapeEntry& ended = entry(top_);
      int64_t closed = top_;
      top_ = ended.parent < kNone ? kNone : ended.parent;
      ended.high = high;
      if (ended.low == high && closed + 1 == head_ && closed >= tail_) head_--;
    }
  }

  // The innermost call that owns a node of this number; kNone: there is none.
  int64_t find(int64_t number) {
    int64_t found = last_before(number);
    if (found == kNone) {
      for (auto elder = elders_.rbegin(); elder != elders_.rend(); ++elder)
        if (elder->entry.low <= number && owns(elder->entry, number)) return elder->index;
      return kNone;
    }
    while (found > kNone && !owns(entry(found), number)) found = entry(found).parent;
    return found < kNone ? kNone : found;
  }

  // The index of the call around; kNone: there is none; below kNone: `in_other` gives its index in the
  // tape of the followed thread.
  int64_t parent_of(int64_t index) {
    int64_t parent = entry(index).parent;
    while (parent > kNone && is_passed_over(entry(parent))) parent = entry(parent).parent;
    return parent;
  }
  // Converts the index of a call in the other tape to the number that stands for it here, and back.
  static int64_t in_other(int64_t index) { return kNone - 1 - index; }

  TapeEntry& entry(int64_t index) {
    if (index >= tail_) return at(index);
    auto is_before = [](const Elder& elder, int64_t wanted) { return elder.index < wanted; };
    auto elder = std::lower_bound(elders_.begin(), elders_.end(), index, is_before);
    assert(elder != elders_.end() && elder->index == index);
    return elder->entry;
  }
  // Whether a call of this code is open there: one that did not end in order may be closed already.
  bool is_open(int64_t index, int64_t code) {
    for (int64_t open = top_; open >= index && open > kNone; open = entry(open).parent)
      if (open == index) return entry(open).code == code;
    return false;
  }
  int64_t top() const { return top_; }
  int64_t size() const { return head_ - tail_; }
  int64_t steps = 0;  // how many entries were looked at to find owners; for tests

 private:
  struct Elder {
    int64_t index;
    TapeEntry entry;
  };

  // While a pass runs, its open owners own the nodes that it makes. But the nodes that run in a pass
  // inside of it were made by others (calls that a checkpoint makes again, say), so a search for the
  // owner of such a node skips them.
  static bool is_passed_over(const TapeEntry& entry) { return entry.is_backward && entry.high == kOpen; }
  static bool owns(const TapeEntry& entry, int64_t number) {
    return number < entry.high && !is_passed_over(entry);
  }

  TapeEntry& at(int64_t index) { return ring_[size_t(index) & (ring_.size() - 1)]; }

  // The last entry that begins at `number` or before. Passes go backwards, so the search begins at the
  // entry that was found last, and doubles its steps.
  int64_t last_before(int64_t number) {
    if (head_ == tail_ || at(tail_).low > number) return kNone;
    int64_t low = std::clamp(hint_, tail_, head_ - 1), high = low + 1, far = 1;  // in [low, high)
    if (at(low).low > number) {
      for (high = low; at(low).low > number; far *= 2, steps++) {
        high = low;
        low = std::max(low - far, tail_);
      }
    } else {
      for (; high < head_ && at(high).low <= number; far *= 2, steps++) {
        low = high;
        high = std::min(high + far, head_);
      }
    }
    while (high - low > 1) {
      int64_t middle = low + (high - low) / 2;
      (at(middle).low <= number ? low : high) = middle;
      steps++;
    }
    return hint_ = low;
  }

  void make_room() {
    if (int64_t(ring_.size()) < kMost) {
      std::vector<TapeEntry> wider(std::max<size_t>(2 * ring_.size(), 64));
      for (int64_t index = tail_; index < head_; index++)
        wider[size_t(index) & (wider.size() - 1)] = at(index);
      ring_ = std::move(wider);
      return;
    }
    int64_t around_next = at(tail_ + 1).parent;
    if (around_next == tail_)
      elders_.push_back({tail_, at(tail_)});
    else
      while (!elders_.empty() && elders_.back().index != around_next) elders_.pop_back();
    tail_++;
  }

  std::vector<TapeEntry> ring_;  // its size is a power of two
  std::vector<Elder> elders_;
  int64_t tail_ = 0, head_ = 0;  // the oldest entry, and the next one
  int64_t top_ = kNone;          // the innermost call that is open
  int64_t hint_ = 0;
};

}  // namespace
