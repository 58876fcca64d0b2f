// A place in the tree of calls, with the state of the call that is open there. See reference/node.py.

#pragma once

#include "attribution.h"
#include "clock.h"
#include "tools.h"

#include <c10/util/flat_hash_map.h>

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

struct Node;

// Maps a module's address, or the code of a forward, to a node. Nodes are borrowed: the
// list `sites` of a cursor owns all of its nodes, for as long as the cursor lives.
class Children {
 public:
  Node* find(uint64_t key) const {
    auto found = nodes_.find(key);
    return found == nodes_.end() ? nullptr : found->second;
  }
  void insert(uint64_t key, Node* node) { nodes_[key] = node; }
  void erase(uint64_t key) { nodes_.erase(key); }
  void clear() { nodes_.clear(); }
  size_t size() const { return nodes_.size(); }

 private:
  ska::flat_hash_map<uint64_t, Node*> nodes_;
};

// Nodes of backwards that are booked inside of a node: by the code of the forward's node, or by
// the name of the autograd node.
struct BackwardChildren {
  Children by_code;
  std::unordered_map<std::string, Node*> by_name;
};

// The call that is open at a node.
// low: number of the first autograd node that it can own. owner: its slot in a tape, if it has one. ignored: how
// many calls inside are open that are not followed, of modules that have an open call which is.
struct OpenCall {
  Relaxed<Nanoseconds> start_ns;
  int64_t low;
  Owner owner;
  int64_t ignored;
  // Readings of memory when it began, and the highest level since; valid if `is_metered`.
  Relaxed<char> is_metered;
  Relaxed<int64_t> used_bytes, acquired_bytes, level_bytes, peak_bytes;
};

// Floating-point operations of calls, and of all gradients that their backward computes.
struct Work {
  int64_t forward = 0, gradients = 0;
};

struct NodeState : OpenCall {
  PyObject* caller;  // a Node; null for the outermost, which Python sees as its own caller
  int64_t code;
  uint64_t key;
  int64_t nodes_run;  // how many nodes of passes ran here
  int64_t cut;    // how many calls did not run to their end
  int device = -1;  // index of the device on which the parameters of its module are; below 0: of none, or of several
  char is_entry, is_called, is_function, is_loading, observes_operators, communicates;
  // Whether the operations of calls of this function are counted: in the first call of each kind (see
  // `Key`), of which `work` is the most; or, if it stands for all shapes that have no node of their own
  // (`is_mixed`), in each call that ends, of which `work` is the sum. `with_gradients`: how many calls of
  // that sum have gradients.
  char counts_work, is_mixed;
  Work work;
  int64_t with_gradients;
  Children children;
  Children operators;  // functions that are called from here, by their keys (see operators.h)
  BackwardChildren backward;

  Node* around() const { return reinterpret_cast<Node*>(caller); }
  template <class Function>
  void each_held(Function function) {
    function(caller);
  }
};

struct Node : WithPart<Node, NodeState> {};

PyTypeObject* node_type;

// False: an exception.
bool is_node(PyObject* value) {
  if (PyObject_TypeCheck(value, node_type)) return true;
  PyErr_SetString(PyExc_TypeError, "must be a Node");
  return false;
}

PyObject* node_get_caller(PyObject* self, void*) {
  PyObject* caller = Node::of(self)->caller;
  return Py_NewRef(caller ? caller : self);
}

int node_set_caller(PyObject* self, PyObject* value, void*) {
  if (value == nullptr || !is_node(value)) return -1;
  Node* node = Node::of(self);
  // The outermost is its own caller: null stands for that, as a reference to itself would
  // be a cycle.
  PyObject* before = node->caller;
  node->caller = value == self ? nullptr : Py_NewRef(value);
  Py_XDECREF(before);
  return 0;
}

// Moves the call that is open at another node to this node.
PyObject* node_continue_call_of(PyObject* self, PyObject* other) {
  if (!is_node(other)) return nullptr;
  Node *node = Node::of(self), *before = Node::of(other);
  node->key = before->key;
  static_cast<OpenCall&>(*node) = std::move(static_cast<OpenCall&>(*before));
  before->is_metered = 0;
  before->owner = {};
  if (node->owner.tape != nullptr) node->owner.code() = int32_t(node->code);
  Py_RETURN_NONE;
}

bool key_of(PyObject* number, uint64_t* key) {
  *key = PyLong_AsUnsignedLongLong(number);
  return !(*key == uint64_t(-1) && PyErr_Occurred());
}

PyObject* node_child(PyObject* self, PyObject* number) {
  uint64_t key;
  if (!key_of(number, &key)) return nullptr;
  PyObject* child = Node::of(self)->children.find(key);
  return Py_NewRef(child ? child : Py_None);
}

PyObject* node_add_child(PyObject* self, PyObject* args) {
  PyObject *number, *child;
  uint64_t key;
  if (!PyArg_ParseTuple(args, "OO!", &number, node_type, &child) || !key_of(number, &key)) return nullptr;
  Node::of(self)->children.insert(key, Node::of(child));
  Py_RETURN_NONE;
}

PyObject* node_forget_child(PyObject* self, PyObject* number) {
  uint64_t key;
  if (!key_of(number, &key)) return nullptr;
  Node::of(self)->children.erase(key);
  Py_RETURN_NONE;
}

// Has the work of a function's calls counted (see `NodeState`).
PyObject* node_count_work(PyObject* self, PyObject* is_mixed) {
  Node::of(self)->counts_work = 1;
  Node::of(self)->is_mixed = is_mixed == Py_True;
  Py_RETURN_NONE;
}

PyMemberDef node_members[] = {
    {"code", T_LONGLONG, offsetof(Node, code), 0, nullptr},
    {"key", T_ULONGLONG, offsetof(Node, key), 0, nullptr},
    {"start_ns", T_LONGLONG, offsetof(Node, start_ns), 0, nullptr},
    {"low", T_LONGLONG, offsetof(Node, low), 0, nullptr},
    {"ignored", T_LONGLONG, offsetof(Node, ignored), 0, nullptr},
    {"nodes_run", T_LONGLONG, offsetof(Node, nodes_run), 0, nullptr},
    {"cut", T_LONGLONG, offsetof(Node, cut), 0, nullptr},
    {"device", T_INT, offsetof(Node, device), 0, nullptr},
    {"is_entry", T_BOOL, offsetof(Node, is_entry), 0, nullptr},
    {"is_called", T_BOOL, offsetof(Node, is_called), 0, nullptr},
    {"is_function", T_BOOL, offsetof(Node, is_function), 0, nullptr},
    {"is_loading", T_BOOL, offsetof(Node, is_loading), 0, nullptr},
    {"observes_operators", T_BOOL, offsetof(Node, observes_operators), 0, nullptr},
    {"communicates", T_BOOL, offsetof(Node, communicates), 0, nullptr},
    {"is_mixed", T_BOOL, offsetof(Node, is_mixed), READONLY, nullptr},
    {"flops", T_LONGLONG, offsetof(Node, work.forward), READONLY, nullptr},
    {"gradient_flops", T_LONGLONG, offsetof(Node, work.gradients), READONLY, nullptr},
    {"with_gradients", T_LONGLONG, offsetof(Node, with_gradients), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyGetSetDef node_getset[] = {{"caller", node_get_caller, node_set_caller, nullptr, nullptr},
                             {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMethodDef node_methods[] = {{"continue_call_of", node_continue_call_of, METH_O, nullptr},
                              {"count_work", node_count_work, METH_O, nullptr},
                              {"child", node_child, METH_O, nullptr},
                              {"add_child", node_add_child, METH_VARARGS, nullptr},
                              {"forget_child", node_forget_child, METH_O, nullptr},
                              {nullptr, nullptr, 0, nullptr}};

PyType_Slot node_slots[] = {SLOT(Py_tp_new, Node::make),
                            SLOT(Py_tp_dealloc, Node::dealloc),
                            SLOT(Py_tp_traverse, Node::traverse),
                            SLOT(Py_tp_clear, Node::clear),
                            SLOT(Py_tp_members, node_members),
                            SLOT(Py_tp_methods, node_methods),
                            SLOT(Py_tp_getset, node_getset),
                            {0, nullptr}};
PyType_Spec node_spec = {MODULE "Node", sizeof(Node), 0, kWithCycles, node_slots};

}  // namespace
