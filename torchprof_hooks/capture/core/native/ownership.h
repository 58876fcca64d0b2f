// Which call made which autograd node, for as long as their graph lives.

#pragma once

#include "tools.h"

#include <algorithm>
#include <memory>
#include <vector>

namespace {

struct Interval {
  int64_t code, low, high;
  int parent = -1;
  int first_kid = 0, kids = 0;  // among `Intervals::kids`, by rising number
};

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
    if (!all.empty()) {
      low = INT64_MAX;
      for (const Interval& one : all) {
        low = std::min(low, one.low);
        high = std::max(high, one.high);
      }
    }
  }

  // The innermost interval with `number` in it, or -1. near: one to begin with, or -1.
  int find(int64_t number, int near) const {
    int found = near;
    while (found >= 0 && !holds(found, number)) found = all[size_t(found)].parent;
    for (;;) {
      const int* begin = kids.data() + (found < 0 ? 0 : all[size_t(found)].first_kid);
      const int* end = begin + (found < 0 ? roots : all[size_t(found)].kids);
      // The last one that begins at `number` or before. Of such as begin together (one
      // of them is empty but for the other), the outer one comes later.
      const int* after = std::upper_bound(
          begin, end, number, [&](int64_t value, int kid) { return value < all[size_t(kid)].low; });
      if (after == begin || !holds(after[-1], number)) return found;
      found = after[-1];
    }
  }

 private:
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

PyObject* record_size(PyObject* self, void*) {
  const Intervals& intervals = *reinterpret_cast<Record*>(self)->intervals;
  size_t each = sizeof(Interval) + sizeof(int);
  return PyLong_FromSize_t(400 + each * intervals.all.size());
}

// The records of the calls of one thread, by rising number. They may be gone.
struct Records {
  std::vector<std::weak_ptr<Intervals>> all;
  size_t prune_at = 128;

  void add(const std::shared_ptr<Intervals>& intervals) {
    all.push_back(intervals);
    if (all.size() < prune_at) return;
    all.erase(std::remove_if(all.begin(), all.end(), [](const auto& one) { return one.expired(); }),
              all.end());
    prune_at = 2 * std::max<size_t>(all.size(), 64);
  }

  std::shared_ptr<Intervals> find(int64_t number) const {
    for (auto one = all.rbegin(); one != all.rend(); ++one) {
      std::shared_ptr<Intervals> intervals = one->lock();
      if (intervals == nullptr || intervals->low > number) continue;
      if (intervals->high <= number) return nullptr;
      return intervals;
    }
    return nullptr;
  }
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
