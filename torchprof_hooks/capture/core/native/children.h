// The calls that are made from inside of a call: a table by the address of the module.

#pragma once

#include <c10/util/flat_hash_map.h>

#include <cstdint>

namespace {

struct Node;

// From a module's address to the node of its calls. Nodes are borrowed: those of a cursor
// live as long as it does.
class Children {
 public:
  Node* find(uint64_t key) const {
    auto found = nodes_.find(key);
    return found == nodes_.end() ? nullptr : found->second;
  }
  void insert(uint64_t key, Node* node) { nodes_[key] = node; }
  void erase(uint64_t key) { nodes_.erase(key); }
  template <class Function>
  void each(Function function) const {
    for (const auto& [key, node] : nodes_) function(key, node);
  }

 private:
  ska::flat_hash_map<uint64_t, Node*> nodes_;
};

}  // namespace
