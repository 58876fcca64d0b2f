// Backward passes that begin outside of everything else and go well, as nearly all do. For
// these, one call each does what `Tracker.begin_pass` and `Tracker.end_pass` do for others.

#pragma once

#include "passes.h"

namespace {

// Begins such a pass at `base`; what the engine does itself is booked at `engine`. If that is
// None, the pass is booked as a whole, and nobody hears of its nodes.
PyObject* begin_outer_pass(PyObject* self, PyObject* args) {
  PyObject *started, *base, *engine;
  int names_nodes, makes_graph;
  long long began_ns;
  if (!PyArg_ParseTuple(args, "OO!OppL", &started, node_type, &base, &engine, &names_nodes, &makes_graph,
                        &began_ns) ||
      (engine != Py_None && !is_node(engine)))
    return nullptr;
  Cursor* cursor = Cursor::of(self);
  Node *node = Node::of(base), *itself = engine == Py_None ? nullptr : Node::of(engine);
  std::shared_ptr<Pass> pass = new_pass(started, node, itself != nullptr, makes_graph, names_nodes);
  pass->hears = itself != nullptr;
  Nanoseconds read_before_ns = cursor->outside->reading_ns;
  if (!is_done(open_entry(self, base))) return nullptr;
  if (!begin(self, std::move(pass), itself)) {
    go_to(cursor, cursor->outside);
    return nullptr;
  }
  // All that was done since `began_ns` is a cost; it includes what was added meanwhile.
  cursor->outside->reading_ns = read_before_ns + node->start_ns - began_ns;
  Py_RETURN_NONE;
}

// Whether the pass can be ended here: nothing has happened in it that is left to Python.
bool ends_well(Cursor* cursor, PyObject* started) {
  if (!is_last(cursor, started) || cursor->running->passes.size() != 1) return false;
  const Pass& pass = *cursor->running->passes.back();
  bool has_run = pass.ended_ns != 0 || !pass.hears;
  return has_run && cursor->site == pass.owner() && cursor->raised == nullptr;
}

// Ends such a pass, which has not failed. engine: as it was begun with. outputs: what its
// graph can be reached from. Returns False if the pass is left to Python: then it is not ended.
PyObject* end_outer_pass(PyObject* self, PyObject* args) {
  PyObject *started, *engine, *outputs;
  if (!PyArg_ParseTuple(args, "OOO", &started, &engine, &outputs) ||
      (engine != Py_None && !is_node(engine)))
    return nullptr;
  Cursor* cursor = Cursor::of(self);
  Nanoseconds now_ns = clock_ns(), nodes_ended_ns, of_base_ns;
  if (fold_if_due(cursor) < 0) return nullptr;
  Node* base;
  {
    PassLock locked(cursor);
    if (!ends_well(cursor, started)) Py_RETURN_FALSE;
    base = cursor->running->passes.back()->base;
    of_base_ns = base->reading_ns;
    bool is_ours;
    nodes_ended_ns = end(cursor, false, &is_ours);
    if (!is_ours) Py_RETURN_TRUE;
  }
  if (engine != Py_None && now_ns > nodes_ended_ns)  // what comes after the last node is the engine's own time
    cursor->log->book(Node::of(engine)->code, nodes_ended_ns, now_ns);
  base->reading_ns = of_base_ns;  // what we do here is no part of the pass
  if (!cursor->reads_meters && device_of(cursor) == nullptr)  // else `read_at_end` adds it
    base->around()->reading_ns += clock_ns() - now_ns;
  bool is_read = read_at_end(self, base, now_ns);
  if (is_read) go_to(cursor, base->around());
  bool is_finished = is_read && finish_entry(self, base, now_ns, outputs, Told::kAlways) == 0;
  Py_DECREF(self);  // the caller has another one
  if (!is_finished || raise_again(cursor)) return nullptr;
  Py_RETURN_TRUE;
}

}  // namespace
