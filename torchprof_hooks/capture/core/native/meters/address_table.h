// A table of pointers by address that takes 21 to 43 bytes for each: there are as many as there are tensors.

#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace memory {

// An entry is at the place that its address hashes to, or at the first one after it that was free. When
// one goes, those behind it that could be nearer move up, so that no gap is between an entry and its place.
template <class Value>
class AddressTable {
 public:
  // Null: there is none.
  Value* find(const void* address) const { return entries_.empty() ? nullptr : entries_[place_of(address)].value; }

  void insert(const void* address, Value* value) {
    if (4 * (size_ + 1) > 3 * entries_.size()) grow();
    Entry& entry = entries_[place_of(address)];
    size_ += entry.value == nullptr;
    entry = {address, value};
  }

  // Removes what is there; null: nothing is.
  Value* take(const void* address) {
    if (entries_.empty()) return nullptr;
    size_t gap = place_of(address);
    Value* taken = entries_[gap].value;
    if (taken == nullptr) return nullptr;
    for (size_t place = after(gap); entries_[place].value != nullptr; place = after(place)) {
      size_t distance = (place - hash(entries_[place].address)) & mask();
      if (distance < ((place - gap) & mask())) continue;
      entries_[gap] = entries_[place];
      gap = place;
    }
    entries_[gap] = {};
    size_--;
    return taken;
  }

  size_t size() const { return size_; }

 private:
  // value: null where there is nothing.
  struct Entry {
    const void* address = nullptr;
    Value* value = nullptr;
  };

  size_t mask() const { return entries_.size() - 1; }
  size_t after(size_t place) const { return (place + 1) & mask(); }
  size_t hash(const void* address) const {
    return size_t(reinterpret_cast<uintptr_t>(address) * UINT64_C(0x9E3779B97F4A7C15) >> 32) & mask();
  }
  // Where the entry is, or would be.
  size_t place_of(const void* address) const {
    size_t place = hash(address);
    while (entries_[place].value != nullptr && entries_[place].address != address) place = after(place);
    return place;
  }
  void grow() {
    std::vector<Entry> before(entries_.empty() ? 16 : 2 * entries_.size());
    std::swap(before, entries_);
    for (const Entry& entry : before)
      if (entry.value != nullptr) entries_[place_of(entry.address)] = entry;
  }

  std::vector<Entry> entries_;  // a power of two
  size_t size_ = 0;
};

}  // namespace memory
