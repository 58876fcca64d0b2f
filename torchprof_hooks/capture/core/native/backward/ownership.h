// Which call made which autograd node, for as long as the graph of these nodes lives.

#pragma once

#include "../tools.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace {

struct Interval {
  int64_t code, low, high;
  int parent = -1;
  // Its kids, by rising number: where they begin in `Intervals::kids`, and how many there are.
  int first_kid = 0, kids = 0;
  int place = 0;  // where it is there itself
};

// Places of intervals, each inside of the one before. Few calls are nested deeper than this
// has room for without allocating memory.
using Way = c10::SmallVector<int, 16>;

// Which call made which autograd node: a tree of intervals of the nodes' numbers.
struct Intervals {
  std::vector<Interval> all;
  std::vector<int> kids;  // places of all intervals, by parent; first those that have none
  int roots = 0;
  int64_t low = 0, high = 0;

  // flat: code, low, high of each, in the order in which the calls ended, so that each comes
  // behind those inside of it. Those from index `first` on are taken.
  explicit Intervals(const std::vector<int64_t>& flat, size_t first = 0) {
    all.reserve((flat.size() - first) / 3);
    for (size_t place = first; place + 2 < flat.size(); place += 3)
      all.push_back({flat[place], flat[place + 1], flat[place + 2]});
    std::vector<int> open;
    for (int number = int(all.size()) - 1; number >= 0; number--) {
      Interval& one = all[size_t(number)];
      while (!open.empty() && !contains(all[size_t(open.back())], one)) open.pop_back();
      one.parent = open.empty() ? -1 : open.back();
      (one.parent < 0 ? roots : all[size_t(one.parent)].kids)++;
      open.push_back(number);
    }
    put_kids();
    if (!all.empty()) {
      low = INT64_MAX;
      for (const Interval& one : all) {
        low = std::min(low, one.low);
        high = std::max(high, one.high);
      }
    }
  }

  // Goes from the interval `from` (-1: from outside of all) to the innermost one with `number`
  // in it (or to outside of all). Returns how many are left on the way, and in `entered` those
  // that are entered, outermost first.
  size_t go(int from, int64_t number, Way* entered) const {
    size_t left = 0;
    int here = from, last_left = -1;
    for (; here >= 0 && !holds(here, number); here = all[size_t(here)].parent) {
      last_left = here;
      left++;
    }
    while ((here = kid_with(number, here, last_left)) >= 0) {
      entered->push_back(here);
      last_left = -1;
    }
    return left;
  }

 private:
  // Sorts all by their parents, once it is known how many kids each has.
  void put_kids() {
    kids.resize(all.size());
    int next = roots, next_root = 0;
    for (Interval& one : all) {
      one.first_kid = next;
      next += one.kids;
    }
    std::vector<int> put(all.size());
    for (size_t number = 0; number < all.size(); number++) {
      Interval& one = all[number];
      size_t parent = size_t(one.parent);
      one.place = one.parent < 0 ? next_root++ : all[parent].first_kid + put[parent]++;
      kids[size_t(one.place)] = int(number);
    }
  }
  // The kid of `around` (-1: one without a parent) with `number` in it, or -1.
  // left: a kid of `around` that was just left, as `number` is not in it, or -1.
  int kid_with(int64_t number, int around, int left) const {
    const int* begin = kids.data() + (around < 0 ? 0 : all[size_t(around)].first_kid);
    const int* end = begin + (around < 0 ? roots : all[size_t(around)].kids);
    if (left >= 0 && number < all[size_t(left)].low) end = kids.data() + all[size_t(left)].place;
    auto is_before = [&](int64_t value, int kid) { return value < all[size_t(kid)].low; };
    // Finds the last kid that begins at `number` or before. Of such as begin together (one of
    // them is empty but for the other), the outer one comes later. Passes go backwards: mostly
    // it is the kid before the one that was left, or the last of all; so that is tried first.
    bool is_next = begin != end && !is_before(number, end[-1]);
    const int* after = is_next ? end : std::upper_bound(begin, end, number, is_before);
    return after != begin && holds(after[-1], number) ? after[-1] : -1;
  }
  static bool contains(const Interval& outer, const Interval& inner) {
    return outer.low <= inner.low && inner.high <= outer.high;
  }
  bool holds(int place, int64_t number) const {
    const Interval& one = all[size_t(place)];
    return one.low <= number && number < one.high;
  }
};

// The calls that are open around a pass, and all that ended inside of them. These may be
// many, but most passes run nodes of the newest few. So the tree has only the newest, until a
// node comes that belongs to an older one.
class CallsAround {
 public:
  // steps: is raised by how many intervals are put into a tree.
  CallsAround(std::vector<int64_t> flat, int64_t* steps) : flat_(std::move(flat)), first_(flat_.size()) {
    if (!flat_.empty()) low_ = INT64_MAX;
    for (size_t place = 0; place + 2 < flat_.size(); place += 3) {
      low_ = std::min(low_, flat_[place + 1]);
      high_ = std::max(high_, flat_[place + 2]);
    }
    put_newest(kAtFirst, steps);
  }

  const std::shared_ptr<Intervals>& tree() const { return tree_; }

  // Puts older calls into the tree, until it tells whose the node `number` is. Returns how many
  // intervals that has added, in front of those that were there.
  int look_back_to(int64_t number, int64_t* steps) {
    size_t before = first_;
    while (low_ <= number && number < older_reach_) put_newest((flat_.size() - first_) / 3 * 2, steps);
    return int(before - first_) / 3;
  }

 private:
  static constexpr size_t kAtFirst = 64;

  void put_newest(size_t count, int64_t* steps) {
    first_ = flat_.size() - std::min(flat_.size(), 3 * count);
    older_reach_ = INT64_MIN;
    for (size_t place = 0; place < first_; place += 3) older_reach_ = std::max(older_reach_, flat_[place + 2]);
    tree_ = std::make_shared<Intervals>(flat_, first_);
    tree_->low = low_;
    tree_->high = high_;
    *steps += int64_t(tree_->all.size());
  }

  std::vector<int64_t> flat_;
  size_t first_;  // index in `flat_` of the oldest interval that is in the tree
  // Before which number all end that are not in the tree; low and high of all.
  int64_t older_reach_ = INT64_MIN, low_ = 0, high_ = 0;
  std::shared_ptr<Intervals> tree_;
};

// Keeps the intervals of one outermost call alive. The graph that the call made holds the
// record (see ties.h).
struct Record {
  PyObject_HEAD
  std::shared_ptr<Intervals> intervals;
};

PyTypeObject* record_type;

void record_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  reinterpret_cast<Record*>(self)->intervals.~shared_ptr();
  type->tp_free(self);
  Py_DECREF(type);
}

template <int64_t Intervals::*field>
PyObject* record_number(PyObject* self, void*) {
  return PyLong_FromLongLong(reinterpret_cast<Record*>(self)->intervals.get()->*field);
}

// See ownership.py.
constexpr size_t kBigRecordBytes = 1 << 16;

size_t bytes_of(PyObject* record) {
  const Intervals& intervals = *reinterpret_cast<Record*>(record)->intervals;
  return 400 + (sizeof(Interval) + sizeof(int)) * intervals.all.size();
}

PyObject* record_size(PyObject* self, void*) { return PyLong_FromSize_t(bytes_of(self)); }

// The records of one thread's calls, mostly by rising number: those of loose calls and of
// passes may be added late. Referred to weakly: a record goes when its graph does.
class Records {
 public:
  void add(const std::shared_ptr<Intervals>& intervals) {
    all_.push_back({intervals, intervals->low});
    lower_from(all_.size() - 1);
    if (all_.size() < prune_at_) return;
    prune();
    prune_at_ = 2 * std::max<size_t>(all_.size(), 64);
  }

  // The newest record that begins at `number` or before, if `number` is in it; else null.
  // steps: is raised by how many records were looked at.
  std::shared_ptr<Intervals> find(int64_t number, int64_t* steps) {
    // A search, not a scan: where a program loops, a pass needs another record at almost
    // each node.
    auto is_before = [&](int64_t value, const Kept& one) { return ++*steps, value < one.lowest; };
    auto place = std::upper_bound(all_.begin(), all_.end(), number, is_before);
    std::shared_ptr<Intervals> found;
    while (place != all_.begin() && found == nullptr) {
      --place;
      ++*steps;
      found = place->intervals.lock();
      gone_met_ += found == nullptr;
      if (found != nullptr && found->low > number) found = nullptr;
    }
    if (gone_met_ > all_.size()) prune();  // else dead ones are met again and again
    return found != nullptr && found->high > number ? found : nullptr;
  }

 private:
  struct Kept {
    std::weak_ptr<Intervals> intervals;
    int64_t lowest;  // the lowest `low` of this and all newer ones: never falls, so it can be searched
  };

  // Lowers `lowest` of older ones, where that of the one at `place` is lower.
  void lower_from(size_t place) {
    for (; place > 0 && all_[place - 1].lowest > all_[place].lowest; place--)
      all_[place - 1].lowest = all_[place].lowest;
  }

  void prune() {
    std::erase_if(all_, [](const Kept& one) { return one.intervals.expired(); });
    gone_met_ = 0;
  }

  std::vector<Kept> all_;
  size_t prune_at_ = 128, gone_met_ = 0;
};

PyGetSetDef record_getset[] = {
    {"low", record_number<&Intervals::low>, nullptr, nullptr, nullptr},
    {"high", record_number<&Intervals::high>, nullptr, nullptr, nullptr},
    {"size_bytes", record_size, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot record_slots[] = {
    SLOT(Py_tp_dealloc, record_dealloc), SLOT(Py_tp_getset, record_getset), {0, nullptr}};
PyType_Spec record_spec = {MODULE "Record", sizeof(Record), 0, Py_TPFLAGS_DEFAULT, record_slots};

}  // namespace
