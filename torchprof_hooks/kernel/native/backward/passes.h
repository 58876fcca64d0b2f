// How backward passes begin and end.

#pragma once

#include "nodes.h"

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/engine.h>

namespace {

// Has the engine notify us of the end of the last node: from then on, devices work for `Pass::waiting`. It makes
// callbacks in the order in which they were asked for, so this comes before those that nodes of the pass ask for.
void await_last_node(Cursor* cursor, Pass& pass) {
  Node* waiting = std::exchange(pass.waiting, nullptr);
  if (waiting == nullptr) return;
  auto at_end = [running = cursor->running, pass = pass.shared_from_this(), waiting] {
    std::lock_guard<std::recursive_mutex> locked(running->mutex());
    if (pass->is_over) return;
    running->cursor->meters.wait(waiting, running->cursor->thread);
  };
  torch::autograd::Engine::get_default_engine().queue_callback(at_end);
}

std::unique_ptr<at::ObserverContext> at_node_start(const at::RecordFunction& node) {
  each_followed([&](Cursor* cursor, Pass& pass) {
    auto stays = pass.shared_from_this();
    await_last_node(cursor, pass);
    node_begins(cursor, pass, node.seqNr(), node.forwardThreadId(), node.name());
    if (pass.is_over) return;
    cursor->meters.node_begins(pass.owner(), node.seqNr() < 0, cursor->thread);
  });
  return nullptr;
}

void at_node_end(const at::RecordFunction&, at::ObserverContext*) {
  each_followed([](Cursor* cursor, Pass& pass) {
    auto stays = other_clock ? pass.shared_from_this() : nullptr;  // that may run Python code
    pass.ended_ns = clock_ns();
    if (pass.makes_graph) count_after_node(pass);
    pass.entered_ns = cursor->entered_ns;
    cursor->site->nodes_run += 1;
    cursor->meters.node_ended(cursor->thread);
  });
}

// What this thread had before a pass began in it, and has now.
// task: the engine's number of the pass around it; -1: there is none. While the engine runs a node, it
// installs what was there when its pass began, and afterwards restores what was there before.
// callback: ours at nodes; 0: the thread has one already.
struct Carrying {
  std::shared_ptr<Pass> pass;
  std::shared_ptr<c10::ThreadLocalDebugInfo> before, now;
  int task;
  at::CallbackHandle callback;
};
thread_local std::vector<Carrying> carrying;

// Takes passes that are over off this thread again; not in a node of an outer pass, where one may end.
void carry_no_ended() {
  int task = torch::autograd::get_current_graph_task_id();
  while (!carrying.empty()) {
    Carrying& last = carrying.back();
    bool is_gone = task == -1 && last.task != -1;  // the engine has taken it off
    if (!is_gone && (last.task != task || !last.pass->is_over)) return;
    if (!is_gone) {
      if (last.callback != 0) at::removeCallback(last.callback);
      if (c10::ThreadLocalDebugInfo::current() == last.now)
        c10::ThreadLocalDebugInfo::_forceCurrentDebugInfo(last.before);
    }
    carrying.pop_back();
  }
}

// Lays `carried` below the state of torch's profiler, if that runs: who stops it in a node expects its state
// on top.
void lay(std::shared_ptr<Carried> carried) {
  using Infos = c10::ThreadLocalDebugInfo;
  auto profiler = c10::DebugInfoKind::PROFILER_STATE;
  std::shared_ptr<c10::DebugInfoBase> above;
  if (Infos::get(profiler) != nullptr) try {
      above = Infos::_pop(profiler);
    } catch (const c10::Error&) {  // something else is on top
    }
  Infos::_push(kind_of_carried<c10::DebugInfoKind>(), std::move(carried));
  if (above != nullptr) Infos::_push(profiler, std::move(above));
}

// From now on, this thread works for the pass, and so does each in which the engine runs a part of it.
void carry(Cursor* cursor, const std::shared_ptr<Pass>& pass) {
  auto carried = std::make_shared<Carried>();
  const Carried* here = carried_here();
  if (here != nullptr) *carried = *here;
  std::erase_if(carried->passes, [&](const CarriedPass& one) { return one.site == &cursor->site || one.pass->is_over; });
  carried->passes.push_back({&cursor->site, cursor->running, pass});
  at::CallbackHandle callback = 0;
  if (here == nullptr)
    callback = at::addThreadLocalCallback(
        at::RecordFunctionCallback(at_node_start, at_node_end).scopes({at::RecordScope::BACKWARD_FUNCTION}));
  auto before = c10::ThreadLocalDebugInfo::current();
  lay(std::move(carried));
  carrying.push_back({pass, std::move(before), c10::ThreadLocalDebugInfo::current(),
                      torch::autograd::get_current_graph_task_id(), callback});
}

PyObject* py_carry_no_ended(PyObject*, PyObject*) {
  carry_no_ended();
  Py_RETURN_NONE;
}

// Begins the time of the pass. To be called last: what is done before is no time of the pass.
void engine_begins(Cursor* cursor, Pass& pass) {
  Node* engine = pass.engine;
  pass.open.push_back({{nullptr, kEngine}, engine});
  engine->low = pass.number;
  pass.base->start_ns = engine->start_ns = clock_ns();
  cursor->site = engine;
}

// Called by a hook on a node, which runs before the engine notifies us of the node.
PyObject* reach_node(PyObject* self, PyObject*) {
  Cursor* cursor = Cursor::of(self);
  auto node = torch::autograd::get_current_node();
  PassLock locked(cursor);
  if (node == nullptr || cursor->running->passes.empty()) Py_RETURN_NONE;
  Pass& pass = *cursor->running->passes.back();
  if (cursor->site != pass.owner()) Py_RETURN_NONE;  // else the hook is in a call of its own
  node_begins(cursor, pass, int64_t(node->sequence_nr()), node->thread_id(), node->name().c_str());
  if (raise_again(cursor)) return nullptr;
  Py_RETURN_NONE;
}

std::shared_ptr<Pass> new_pass(PyObject* started, Node* base, bool makes_graph, bool names_nodes) {
  auto pass = std::make_shared<Pass>();
  pass->started = started;
  pass->base = base;
  pass->counts_in = at::RecordFunction::currentThreadId();
  pass->number = next_number();
  pass->makes_graph = makes_graph;
  pass->names_nodes = names_nodes;
  return pass;
}

// False: an exception.
bool begin(PyObject* self, std::shared_ptr<Pass> pass) {
  Cursor* cursor = Cursor::of(self);
  if (observing != nullptr && !is_in_pass()) observing->turn(false);
  PassLock locked(cursor);
  // Here, and not in Python: an interrupt between the two would leave a pass that nobody ends.
  if (PyList_Append(cursor->passes, pass->started) < 0) return false;
  Py_INCREF(self);  // given back when the pass has ended (see `Running::cursor`)
  cursor->running->passes.push_back(pass);
  carry_no_ended();
  carry(cursor, pass);
  if (pass->engine != nullptr) engine_begins(cursor, *pass);
  return true;
}

// Begins a pass at `base`. opens: whether `base` is an entry that begins with the pass; if not, the
// pass runs inside of another one, and its work without an owner belongs to the owner that the outer
// pass is working for. engine: where the engine's own time is booked; None: not separately.
PyObject* enter_pass(PyObject* self, PyObject* args, PyObject* keywords) {
  static const char* parameters[] = {"started", "base", "engine", "waiting", "opens", "makes_graph", "names_nodes", nullptr};
  PyObject *started, *base, *engine, *waiting;
  int opens, makes_graph, names_nodes;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO!OOppp", const_cast<char**>(parameters), &started, node_type,
                                   &base, &engine, &waiting, &opens, &makes_graph, &names_nodes) ||
      (engine != Py_None && !is_node(engine)) || (waiting != Py_None && !is_node(waiting)))
    return nullptr;
  Cursor* cursor = Cursor::of(self);
  Node* node = Node::of(base);
  std::shared_ptr<Pass> pass = new_pass(started, node, makes_graph, names_nodes);
  pass->engine = engine == Py_None ? nullptr : Node::of(engine);
  pass->waiting = waiting == Py_None ? nullptr : Node::of(waiting);
  pass->opens = opens;
  if (opens) {
    if (!is_done(open_entry(self, base))) return nullptr;
    if (cursor->site != node) Py_RETURN_NONE;  // the handler of a signal has ended the profile
  }
  if (!begin(self, std::move(pass))) {
    if (opens) go_to(cursor, node->around());
    return nullptr;
  }
  Py_RETURN_NONE;
}

// Removes the pass that began last; also from Python's list `passes`, as an interrupt between
// the two would leave it in one of them. The caller has to give back the pass's reference to the
// cursor.
void forget_pass(Cursor* cursor) {
  Running& running = *cursor->running;
  running.passes.back()->is_over = true;
  PyObject* started = running.passes.back()->started;
  running.passes.pop_back();
  Py_ssize_t last = PyList_GET_SIZE(cursor->passes) - 1;
  if (last >= 0 && PyList_GET_ITEM(cursor->passes, last) == started)
    PyList_SetSlice(cursor->passes, last, last + 1, nullptr);
  carry_no_ended();
}

// Whether `started` is the pass that began last.
bool is_last(Cursor* cursor, PyObject* started) {
  const auto& running = cursor->running->passes;
  return !running.empty() && running.back()->started == started;
}

// Ends the pass that began last: closes what is open in it as of the end of its last node (as
// of now, if it failed), and returns that moment; 0 if no node has run.
// is_ours: becomes false if Python code that ran meanwhile has ended the pass: then there is
// nothing more to do. Otherwise the caller, which has a reference of its own to the cursor, still
// has to give back that of the pass, and to call `raise_again`.
Nanoseconds end(Cursor* cursor, bool failed, bool* is_ours) {
  auto stays = cursor->running->passes.back();
  Pass& pass = *stays;
  Nanoseconds end_ns = 0;
  if (pass.ended_ns != 0)
    end_ns = failed ? clock_ns() : pass.ended_ns + cursor->entered_ns - pass.entered_ns;
  if (!pass.open.empty()) move(cursor, pass, 0, {}, end_ns);
  *is_ours = !pass.is_over;
  if (!*is_ours) return end_ns;
  forget_pass(cursor);
  if (end_ns != 0 && !pass.opens && !cursor->running->passes.empty()) {  // a hook of the pass around it has run it
    Pass& around = *cursor->running->passes.back();
    if (around.ended_ns != 0) around.ended_ns = end_ns, around.entered_ns = cursor->entered_ns;
  }
  return end_ns;
}

// Whether `finish_pass` can end the pass: nothing has happened in it that Python has to handle.
bool ends_well(Cursor* cursor, PyObject* started) {
  if (!is_last(cursor, started)) return false;
  const Pass& pass = *cursor->running->passes.back();
  return pass.ended_ns != 0 && cursor->site == pass.owner() && cursor->raised == nullptr;
}

// Ends a pass that has gone well, as nearly all do. Returns False, and does not end it, if Python has
// to do that.
PyObject* finish_pass(PyObject* self, PyObject* started) {
  Cursor* cursor = Cursor::of(self);
  if (fold_if_due(cursor) < 0) return nullptr;
  Nanoseconds now_ns = clock_ns(), entered_ns = cursor->entered_ns, nodes_ended_ns;
  Node *base, *engine;
  bool opens;
  {
    PassLock locked(cursor);
    if (!ends_well(cursor, started)) Py_RETURN_FALSE;
    const Pass& pass = *cursor->running->passes.back();
    base = pass.base;
    engine = pass.engine;
    opens = pass.opens;
    bool is_ours;
    nodes_ended_ns = end(cursor, false, &is_ours);
    if (!is_ours) Py_RETURN_TRUE;
  }
  now_ns += cursor->entered_ns - entered_ns;  // what has interrupted the pass since is no part of it
  bool is_finished = true;
  if (engine != nullptr && now_ns > nodes_ended_ns)  // what comes after the last node is the engine's own time
    cursor->log->book(engine->code, nodes_ended_ns, now_ns);
  if (opens) {
    read_at_end(cursor, base);
    go_to(cursor, base->around());
    is_finished = finish_entry(cursor, base, now_ns, Py_True) == 0;
  }
  Py_DECREF(self);  // the caller has another one
  if (!is_finished || raise_again(cursor)) return nullptr;
  Py_RETURN_TRUE;
}

// Ends a pass, and returns when its last node ended; None if no node has run, or if the pass
// is not the one that began last.
PyObject* leave_pass(PyObject* self, PyObject* args) {
  PyObject* started;
  int failed = 0;
  if (!PyArg_ParseTuple(args, "O|p", &started, &failed)) return nullptr;
  Cursor* cursor = Cursor::of(self);
  PassLock locked(cursor);
  if (!is_last(cursor, started)) Py_RETURN_NONE;
  bool is_ours;
  Nanoseconds end_ns = end(cursor, failed, &is_ours);
  if (is_ours) Py_DECREF(self);
  if (raise_again(cursor)) return nullptr;
  if (end_ns == 0) Py_RETURN_NONE;
  return PyLong_FromLongLong(end_ns);
}

// Forgets a pass that will not go on; Python has closed what was open in it.
PyObject* drop_pass(PyObject* self, PyObject* started) {
  Cursor* cursor = Cursor::of(self);
  PassLock locked(cursor);
  if (!is_last(cursor, started)) Py_RETURN_NONE;
  forget_pass(cursor);
  Py_DECREF(self);
  Py_RETURN_NONE;
}

PyObject* open_backward(PyObject* self, void*) {
  PassLock locked(Cursor::of(self));
  const auto& running = Cursor::of(self)->running->passes;
  bool are_calls = !running.empty() && running.back()->has_begun();
  return PyLong_FromSize_t(are_calls ? running.back()->open.size() : 0);
}

PyObject* pass_owner(PyObject* self, void*) {
  PassLock locked(Cursor::of(self));
  const auto& running = Cursor::of(self)->running->passes;
  if (running.empty()) Py_RETURN_NONE;
  return Py_NewRef(running.back()->owner());
}

}  // namespace
