// Whose node is it? Which call made which autograd node, so that a backward pass is booked on the calls whose nodes it
// runs. reference/attribution.py says the same in Python.
//
// The idea. torch numbers the autograd nodes that a thread makes, one after the other. The thread's counter is read
// where a call begins (`low`) and where it ends (`high`): nodes with a number in [low, high) were made in the call. The
// interval of a call lies in those of the calls of the thread around it, so a node belongs to the innermost call whose
// interval has its number. A thread's intervals are on its tape, in the order in which the calls began.
//
// An example. A thread has made nodes 0 to 2, and calls net = Sequential(Linear, ReLU, Linear), and sum():
//
//     slot  call  low  high  parent  nodes that were made
//     0     net     3     8  none    all from 3 to 7
//     1     `0`     3     5  0       TBackward 3, AddmmBackward 4
//     2     `1`     5     6  0       ReluBackward 5
//     3     `2`     6     8  0       TBackward 6, AddmmBackward 7
//
// Whose is node 4? The last slot with low <= 4 is 1, and 4 < 5: that of `0`, inside of net. Whose is node 8, of the
// sum? The last slot with low <= 8 is 3, which has ended before, as has its parent, 0: the row of the pass itself.
//
// Rules, with the numbers of torch 2.13.
// - AccumulateGrad has no number, and belongs to the node that ran before it (`node_begins` in backward/nodes.h).
// - Nested passes need no rule: they begin at the call that runs them, and open their owners inside of it. If net is in
//   a reentrant checkpoint, its forward makes no nodes, and slots without nodes vanish. The checkpoint is node 3, the
//   sum 4. When node 3 runs, it calls net again, with [5, 10) and in that [5, 7), [7, 8), [8, 10); and the pass that it
//   runs works for these calls.
// - create_graph: the pass makes nodes, which belong to the calls whose backward makes them. While it works for a call,
//   that has a slot with `is_backward`. By `torch.autograd.grad(loss, parameters, create_graph=True)`: [9, 21) of the
//   backward of net, and in it [9, 14) of `2`, [14, 15) of `1`, [15, 21) of `0`.
// - Both at once: open `is_backward` slots around calls in a nested pass are passed over, as the pass around works
//   for them already.
// - Threads. Each counts its own nodes, from 0, and has a tape: whose node 4 is depends on the thread that made it. The
//   engine runs nodes of a device in a thread of its own. If a checkpoint calls net there, that has [0, 5) in this
//   thread's tape, inside of what is open in the followed thread. A node that another thread made outside of calls that
//   are followed is nobody's.
// - A tape has room for 2^18 calls (8 MiB), then it forgets the oldest: their nodes belong to the calls around.

#pragma once
#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {
constexpr int64_t kNone = -1;         // no slot
constexpr int64_t kOpen = INT64_MAX;  // `high` of a call that is open
// A call, and the numbers [low, high) of the nodes that were made while it was open.
struct Slot {
  int64_t low, high;
  int64_t parent;    // the slot of the call around it; kNone; or below that, see `Tape::in_followed`
  int32_t code;      // of the call's place in the tree of calls
  bool is_backward;  // the backward of a call, in a pass that makes a graph
};

// The calls of one thread, by absolute indices. When it is full, it forgets its oldest slot; but if the next one is
// inside of that, it moves to `elders_`, where each is around the next: calls that stay open for long are kept.
class Tape {
 public:
  static constexpr int64_t kMost = 1 << 18;

  // outer: the innermost call of the followed thread, if this is the tape of another one; else kNone.
  int64_t open(int64_t low, int64_t code, bool is_backward, int64_t outer) {
    if (head_ - tail_ == int64_t(ring_.size())) make_room();
    at(head_) = {low, kOpen, top_ == kNone ? in_followed(outer) : top_, int32_t(code), is_backward};
    return top_ = head_++;
  }
  // Closes the call, and all that are still open inside of it. One that has not ended in order may be closed
  // already, and another call be there, with another code.
  void close(int64_t index, int64_t code, int64_t high) {
    if (!is_open(index, code)) return;
    while (top_ >= index) {
      Slot& ended = slot(top_);
      int64_t closed = top_;
      top_ = std::max(ended.parent, kNone);
      ended.high = high;
      if (ended.low == high && closed + 1 == head_ && closed >= tail_) head_--;  // it has made no node
    }
  }
  // The innermost call that owns the node of this number; kNone: there is none.
  int64_t find(int64_t number) {
    int64_t found = last_before(number);
    for (auto elder = elders_.rbegin(); found == kNone && elder != elders_.rend(); ++elder)
      if (elder->slot.low <= number) found = elder->index;
    while (found > kNone && !owns(slot(found), number)) found = slot(found).parent;
    return std::max(found, kNone);
  }
  int64_t parent_of(int64_t index) {
    int64_t parent = slot(index).parent;
    while (parent > kNone && is_passed_over(slot(parent))) parent = slot(parent).parent;
    return parent;
  }
  // Converts the index of a slot in the followed thread's tape to a `parent` in another tape, and back; kNone stays.
  static int64_t in_followed(int64_t index) { return kNone - 1 - index; }
  Slot& slot(int64_t index) {
    if (index >= tail_) return at(index);
    auto is_before = [](const Elder& elder, int64_t wanted) { return elder.index < wanted; };
    return std::lower_bound(elders_.begin(), elders_.end(), index, is_before)->slot;
  }
  int64_t top() const { return top_; }  // the innermost call that is open
  int64_t size() const { return head_ - tail_; }
  int64_t steps = 0;  // how many slots were looked at to find owners; for tests

 private:
  struct Elder {
    int64_t index;
    Slot slot;
  };

  static bool is_passed_over(const Slot& slot) { return slot.is_backward && slot.high == kOpen; }
  static bool owns(const Slot& slot, int64_t number) { return number < slot.high && !is_passed_over(slot); }
  Slot& at(int64_t index) { return ring_[size_t(index) & (ring_.size() - 1)]; }

  bool is_open(int64_t index, int64_t code) {
    for (int64_t open = top_; open >= index && open > kNone; open = slot(open).parent)
      if (open == index) return slot(open).code == code;
    return false;
  }
  // The last slot that begins at `number` or before. Passes go backwards, so the search begins at the slot that was
  // found last, and doubles its steps.
  int64_t last_before(int64_t number) {
    if (head_ == tail_ || at(tail_).low > number) return kNone;
    int64_t low = std::clamp(hint_, tail_, head_ - 1), high = low + 1, far = 1;  // in [low, high)
    for (; at(low).low > number; far *= 2, steps++) high = std::exchange(low, std::max(low - far, tail_));
    for (; high < head_ && at(high).low <= number; far *= 2, steps++)
      low = std::exchange(high, std::min(high + far, head_));
    for (; high - low > 1; steps++) {
      int64_t middle = low + (high - low) / 2;
      (at(middle).low <= number ? low : high) = middle;
    }
    return hint_ = low;
  }
  void make_room() {
    if (int64_t(ring_.size()) < kMost) {
      std::vector<Slot> wider(std::max<size_t>(2 * ring_.size(), 64));
      for (int64_t index = tail_; index < head_; index++) wider[size_t(index) & (wider.size() - 1)] = at(index);
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

  std::vector<Slot> ring_;  // its size is a power of two
  std::vector<Elder> elders_;
  int64_t tail_ = 0, head_ = 0;  // the oldest slot, and the next one
  int64_t top_ = kNone, hint_ = 0;
};

// A call that owns nodes: its slot in a tape.
struct Owner {
  Tape* tape = nullptr;
  int64_t index = kNone;
  bool operator==(const Owner&) const = default;
  int32_t& code() const { return tape->slot(index).code; }
};

// The tapes of all threads that make nodes for one cursor. Threads have torch's numbers.
class Tapes {
 public:
  explicit Tapes(uint64_t followed) : followed_thread_(followed) {}

  // A call begins: it owns the nodes that `thread` makes from number `low` on, until its slot is closed.
  Owner open(uint64_t thread, int64_t low, int64_t code, bool is_backward) {
    if (thread == followed_thread_) return {&followed_, followed_.open(low, code, is_backward, kNone)};
    Tape& tape = others_[thread];
    return {&tape, tape.open(low, code, is_backward, followed_.top())};
  }
  // The innermost call that made the node of this number, which the thread `made_by` has made.
  Owner owner_of(int64_t number, uint64_t made_by) {
    if (made_by == followed_thread_) return {&followed_, followed_.find(number)};
    auto found = others_.find(made_by);
    return found == others_.end() ? Owner{} : Owner{&found->second, found->second.find(number)};
  }
  // The call around it.
  Owner around(Owner call) {
    int64_t parent = call.tape->parent_of(call.index);
    return parent >= kNone ? Owner{call.tape, parent} : Owner{&followed_, Tape::in_followed(parent)};
  }
  // Whether a pass that works for the call `one` has to leave it to get to the call `other`: it is not around that.
  bool is_left_for(const Owner& one, const Owner& other) const {
    return one.tape == other.tape ? one.index > other.index : one.tape != &followed_;
  }
  template <class Function>
  void each(Function function) {
    function(followed_);
    for (auto& [_, tape] : others_) function(tape);
  }

 private:
  uint64_t followed_thread_;
  Tape followed_;
  std::unordered_map<uint64_t, Tape> others_;
};

}  // namespace
