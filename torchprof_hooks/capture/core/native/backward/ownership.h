// Which call made which autograd node, for as long as their graph lives.

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
  int first_kid = 0, kids = 0;  // among `Intervals::kids`, by rising number
  int place = 0;                // its own one there
};

// Places of intervals, each inside of the one before. Few calls are nested any deeper:
// no memory is asked for.
using Way = c10::SmallVector<int, 16>;

// Which call made which autograd node: intervals of numbers inside of each other.
struct Intervals {
  std::vector<Interval> all;
  std::vector<int> kids;  // of those without a parent first
  int roots = 0;
  int64_t low = 0, high = 0;

  // flat: code, low, high of each, in the order in which the calls ended.
  explicit Intervals(const std::vector<int64_t>& flat) {
    for (size_t place = 0; place + 2 < flat.size(); place += 3)
      all.push_back({flat[place], flat[place + 1], flat[place + 2]});
    std::vector<int> open;
    std::vector<std::vector<int>> inside(all.size() + 1);
    for (int number = int(all.size()) - 1; number >= 0; number--) {
      Interval& one = all[size_t(number)];
      while (!open.empty() && !contains(all[size_t(open.back())], one)) open.pop_back();
      one.parent = open.empty() ? -1 : open.back();
      inside[size_t(one.parent + 1)].push_back(number);
      open.push_back(number);
    }
    for (size_t place = 0; place < inside.size(); place++) {
      std::reverse(inside[place].begin(), inside[place].end());
      if (place == 0) {
        roots = int(inside[0].size());
      } else {
        all[place - 1].first_kid = int(kids.size());
        all[place - 1].kids = int(inside[place].size());
      }
      kids.insert(kids.end(), inside[place].begin(), inside[place].end());
    }
    for (size_t place = 0; place < kids.size(); place++) all[size_t(kids[place])].place = int(place);
    if (!all.empty()) {
      low = INT64_MAX;
      for (const Interval& one : all) {
        low = std::min(low, one.low);
        high = std::max(high, one.high);
      }
    }
  }

  // Goes from one interval, or from -1, to the innermost one with `number` in it, or to -1:
  // how many are left on the way, and those that are entered, outermost first.
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
  // The one inside of `around` (-1: of none) with `number` in it, or -1.
  // left: one that is there, but has it not, or -1.
  int kid_with(int64_t number, int around, int left) const {
    const int* begin = kids.data() + (around < 0 ? 0 : all[size_t(around)].first_kid);
    const int* end = begin + (around < 0 ? roots : all[size_t(around)].kids);
    if (left >= 0 && number < all[size_t(left)].low) end = kids.data() + all[size_t(left)].place;
    auto is_before = [&](int64_t value, int kid) { return value < all[size_t(kid)].low; };
    // The last one that begins at `number` or before. Of such as begin together (one of
    // them is empty but for the other), the outer one comes later. Passes go backwards:
    // mostly it is the one before that which is left, or the last one of all.
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

// Keeps the intervals of one outermost call. The graph that the call made holds it.
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

// The records of the calls of one thread, mostly by rising number: those that loose calls
// and passes leave may come late. They may be gone.
class Records {
 public:
  void add(const std::shared_ptr<Intervals>& intervals) {
    all_.push_back({intervals, intervals->low});
    lower_from(all_.size() - 1);
    if (all_.size() < prune_at_) return;
    prune();
    prune_at_ = 2 * std::max<size_t>(all_.size(), 64);
  }

  // The newest one that begins at `number` or before, if that is in it.
  // steps: how many were gone through for that.
  std::shared_ptr<Intervals> find(int64_t number, int64_t* steps) {
    // A pass goes over to other records at almost each node of a loop, all along: no scan.
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
    if (gone_met_ > all_.size()) prune();  // else they are met again and again
    return found != nullptr && found->high > number ? found : nullptr;
  }

 private:
  struct Kept {
    std::weak_ptr<Intervals> intervals;
    int64_t lowest;  // `low` of this and of all newer ones: rises from each to the next
  };

  // Tells older ones how low that at `place` goes.
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
