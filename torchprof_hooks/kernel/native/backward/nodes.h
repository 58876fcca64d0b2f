// Books the nodes of a backward pass on the calls that made them.

#pragma once

#include "../calls/calls.h"

#include <ATen/record_function.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/function.h>

#include <cstring>

namespace {

// With create_graph=True, a pass makes nodes itself, so its open owners have slots in a tape (see attribution.h).
// Both numbers of a slot must come from one thread: where a pass goes on in another thread, the slots of all
// open owners end in the tape of the old thread, and new ones begin in that of the new one.

// Closes the slots of all open owners but the first `kept`, at the number that was read last.
void end_made(const Pass& pass, size_t kept) {
  for (size_t place = pass.open.size(); place > kept; place--) own_until(pass.open[place - 1].node, pass.number);
}

// Reads this thread's counter of nodes. If the pass has come from another thread, its slots do, too.
void count_here(Cursor* cursor, Pass& pass) {
  uint64_t here = at::RecordFunction::currentThreadId();
  int64_t number = next_number();
  if (here != pass.counts_in) {
    end_made(pass, 0);
    pass.counts_in = here;
    for (const OpenBackward& one : pass.open)
      if (one.owner.index != kEngine) own_from(cursor, one.node, number, true);
  }
  pass.number = number;
}

// A node has ended. This thread's counter is read now, as the next node may run in another
// thread, which cannot read it.
void count_after_node(Pass& pass) {
  if (pass.counts_in == at::RecordFunction::currentThreadId()) pass.number = next_number();
}

// Takes the GIL in a callback of the engine, and keeps the cursor alive. Python code may end the
// pass: its caller checks `Pass::is_over` afterwards, before anything else. No Python exception can
// pass through the engine: one that is raised meanwhile (by the handler of a signal, say) is kept in
// `Cursor::raised`, and raised again when the pass ends.
class WithPython : WithGil {
 public:
  explicit WithPython(Cursor* cursor) : cursor_(cursor) { Py_INCREF(cursor); }  // the pass's own may end
  ~WithPython() {
    Owned raised(take_raised());
    if (cursor_->raised == nullptr) cursor_->raised = Py_XNewRef(raised.get());
    Py_DECREF(cursor_);
  }

 private:
  Cursor* cursor_;
};

// Raises the exception that WithPython has kept, if there is one. Returns whether there was.
bool raise_again(Cursor* cursor) {
  PyObject* raised = std::exchange(cursor->raised, nullptr);
  if (raised != nullptr) set_raised(raised);
  return raised != nullptr;
}

// Asks Python where to book the backward of `key`, which is new inside of `around`: a borrowed node, or
// null if Python raised. Takes over the reference `key`; the caller has the GIL.
Node* ask(Cursor* cursor, Node* around, PyObject* key) {
  WithPython with(cursor);
  Owned given(key);
  Owned found(call_method(cursor, names.backward_site, around, given.get()));
  if (!found || !PyObject_TypeCheck(found.get(), node_type)) return nullptr;
  return Node::of(found.get());  // `sites` owns it
}

Node* backward_of(Cursor* cursor, Node* around, int64_t code) {
  Node* known = around->backward.by_code.find(uint64_t(code));
  if (known != nullptr) return known;
  WithPython with(cursor);
  known = ask(cursor, around, PyLong_FromLongLong(code));
  if (known != nullptr) around->backward.by_code.insert(uint64_t(code), known);
  return known;
}

Node* named(Cursor* cursor, Node* around, const char* name) {
  Node*& known = around->backward.by_name[name];  // stays valid if others are added meanwhile
  if (known != nullptr) return known;
  WithPython with(cursor);
  return known = ask(cursor, around, PyUnicode_FromString(name));
}

// Moves the pass to other owners: closes all open calls but the first `kept`, and opens others.
// The caller has the mutex of the passes, but maybe not the GIL; Python code may run in here.
// now_ns: when that is; 0: now.
void move(Cursor* cursor, Pass& pass, size_t kept, c10::ArrayRef<OpenBackward> opens = {}, Nanoseconds now_ns = 0) {
  auto stays = pass.shared_from_this();
  if (now_ns == 0) now_ns = clock_ns();
  if (cursor->site != pass.owner()) {
    WithPython with(cursor);
    abort_down_to(cursor, pass.owner(), now_ns);
  }
  if (pass.is_over) return;
  memory::Reading bytes = cursor->meters.read(pass.owner());
  Node* next = !opens.empty() ? opens.back().node : kept != 0 ? pass.open[kept - 1].node : pass.base;
  cursor->meters.enter(next, cursor->thread);
  if (pass.makes_graph) {
    count_here(cursor, pass);
    end_made(pass, kept);
  }
  while (pass.open.size() > kept) {
    Node* node = pass.open.back().node;
    pass.open.pop_back();
    cursor->log->book(node->code, node->start_ns, now_ns);
    cursor->meters.closed(node, bytes);
  }
  for (const OpenBackward& one : opens) {
    one.node->start_ns = now_ns;
    cursor->meters.opened(one.node, bytes);
    if (pass.makes_graph) own_from(cursor, one.node, pass.number, true);
    pass.open.push_back(one);
  }
  cursor->site = pass.owner();
}

// The engine's own node, at which a pass with several roots begins. No function made it.
bool is_graph_root(const char* name) { return std::strcmp(name, "torch::autograd::GraphRoot") == 0; }

// When the pass began to work for the owner of the node that is about to run; 0: now. If the node has
// hooks, that is when the node before ended, and what its hooks did: the engine has called hooks since.
Nanoseconds hooks_began_ns(const Cursor* cursor, const Pass& pass) {
  if (pass.ended_ns == 0) return 0;
  auto node = torch::autograd::get_current_node();
  bool has_hooks = node != nullptr && !(node->tensor_pre_hooks().empty() && node->pre_hooks().empty());
  return has_hooks ? pass.ended_ns + cursor->entered_ns - pass.entered_ns : 0;
}

// A node is about to run, or its hooks are, which then may run a pass of their own: the pass goes on with
// the owner of the node.
// number: of the node, below 0 if it has none; made_by: torch's number of the thread that made it.
void node_begins(Cursor* cursor, Pass& pass, int64_t number, uint64_t made_by, const char* name) {
  if (pass.makes_graph) count_here(cursor, pass);
  if (pass.names_nodes && !pass.has_begun() && is_graph_root(name)) return;
  if (number < 0) {  // accumulates a gradient: belongs to the node before, if there is one
    if (!pass.has_begun()) move(cursor, pass, 0);
    return;
  }
  if (pass.node == std::pair(number, made_by)) return;  // its hooks have begun already
  pass.node = {number, made_by};
  // Each open call is inside of the one before, but for the last, which may be an autograd node
  // under its own name, or the engine.
  size_t kept = pass.open.size();
  if (kept != 0 && pass.open[kept - 1].owner.index < 0) kept--;
  Owner owner = cursor->tapes.owner_of(number, made_by);
  c10::SmallVector<std::pair<Owner, int64_t>, 16> entered;  // with their codes, innermost first
  while (owner.index != kNone) {
    const Owner* last = kept == 0 ? nullptr : &pass.open[kept - 1].owner;
    if (last != nullptr && cursor->tapes.is_left_for(*last, owner)) {
      kept--;
      continue;
    }
    if (last != nullptr && *last == owner) break;
    entered.push_back({owner, owner.code()});
    owner = cursor->tapes.around(owner);
  }
  if (owner.index == kNone) kept = 0;  // no open call is around it
  if (entered.empty() && kept == pass.open.size() && !pass.names_nodes) return;  // the usual case
  auto stays = pass.shared_from_this();
  c10::SmallVector<OpenBackward, 16> opens;
  Node* around_it = kept ? pass.open[kept - 1].node : pass.base;
  for (auto one = entered.rbegin(); one != entered.rend(); ++one) {
    around_it = backward_of(cursor, around_it, one->second);
    if (around_it == nullptr || pass.is_over) return;
    opens.push_back({one->first, around_it});
  }
  if (pass.names_nodes && !around_it->is_function) {
    around_it = named(cursor, around_it, name);
    if (around_it == nullptr || pass.is_over) return;
    opens.push_back({{}, around_it});
  }
  if (opens.empty() && kept == pass.open.size()) return;
  move(cursor, pass, kept, opens, hooks_began_ns(cursor, pass));
}

// Calls `function` with each cursor, and its pass, to which the node belongs that begins or ends in this
// thread. That may be a thread of the engine, which has one for each device.
template <class Function>
void each_followed(Function function) {
  const Carried* here = carried_here();  // stays: the engine has it, too, as long as the node runs
  if (here == nullptr) return;
  for (const CarriedPass& one : here->passes) {
    std::lock_guard<std::recursive_mutex> locked(one.running->mutex());
    const auto& passes = one.running->passes;
    if (!passes.empty() && passes.back() == one.pass) function(one.running->cursor, *one.pass);
  }
}

}  // namespace
