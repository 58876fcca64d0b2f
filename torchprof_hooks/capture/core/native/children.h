// The calls that are made from inside of a call: a table by the address of the module.

#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace {

struct Node;

// From a module's address to the node of its calls; open addressing. Nodes are borrowed:
// those of a cursor live as long as it does.
class Children {
 public:
  Node* find(uint64_t key) const {
    if (slots_.empty()) return nullptr;
    for (size_t place = hash(key);; place = (place + 1) & mask()) {
      if (slots_[place].key == key) return slots_[place].node;
      if (slots_[place].key == 0) return nullptr;
    }
  }
  void insert(uint64_t key, Node* node) {
    if (2 * (used_ + 1) > slots_.size()) grow();
    size_t place = hash(key);
    while (slots_[place].key != 0 && slots_[place].key != key) place = (place + 1) & mask();
    used_ += slots_[place].key == 0;
    slots_[place] = {key, node};
  }
  void erase(uint64_t key) {
    if (find(key) == nullptr) return;
    std::vector<Slot> kept = std::move(slots_);
    slots_.assign(kept.size(), Slot{});
    used_ = 0;
    for (const Slot& slot : kept)
      if (slot.key != 0 && slot.key != key) insert(slot.key, slot.node);
  }
  template <class Function>
  void each(Function function) const {
    for (const Slot& slot : slots_)
      if (slot.key != 0) function(slot.key, slot.node);
  }

 private:
  struct Slot {
    uint64_t key = 0;
    Node* node = nullptr;
  };
  size_t mask() const { return slots_.size() - 1; }
  size_t hash(uint64_t key) const { return ((key >> 4) * 0x9E3779B97F4A7C15u >> 20) & mask(); }
  void grow() {
    std::vector<Slot> kept = std::move(slots_);
    slots_.assign(kept.empty() ? 8 : 2 * kept.size(), Slot{});
    used_ = 0;
    for (const Slot& slot : kept)
      if (slot.key != 0) insert(slot.key, slot.node);
  }

  std::vector<Slot> slots_;
  size_t used_ = 0;
};

}  // namespace
