// How calls of all kinds begin, end, and are booked.

#pragma once

#include "../cursor.h"

#include <optional>

namespace {

// Whether `pass`, a BackwardPass that hooks on nodes follow, began in this thread, or has this number in
// the engine.
bool runs_here(PyObject* pass, long thread, int task) {
  auto is = [pass](PyObject* name, long number) {
    Owned known(PyObject_GetAttr(pass, name));
    return known && PyLong_AsLong(known.get()) == number && !PyErr_Occurred();
  };
  bool does = is(names.thread, thread) || is(names.task, task);
  PyErr_Clear();
  return does;
}

// Whether the running thread is the followed one, or runs a part of a pass for it: for devices, the
// engine has threads of its own.
bool works_here(Cursor* cursor) {
  long thread = long(PyThread_get_thread_ident());
  if (thread == cursor->thread || is_carried_here(&cursor->site)) return true;
  Py_ssize_t count = cursor->passes == nullptr ? 0 : PyList_GET_SIZE(cursor->passes);
  int task = count == 0 ? -1 : torch::autograd::get_current_graph_task_id();
  if (task == -1) return false;  // no pass runs in this thread
  for (Py_ssize_t place = 0; place < PyList_GET_SIZE(cursor->passes); place++) {
    Owned pass(Py_NewRef(PyList_GET_ITEM(cursor->passes, place)));
    if (runs_here(pass.get(), thread, task)) return true;
  }
  return false;
}

// Opens a call, and reads the meters.
// low: number of the first autograd node that it can own.
void open_node(Cursor* cursor, Node* node, int64_t low) {
  node->low = low;
  node->ignored = 0;
  cursor->meters.opened(node, cursor->meters.read(node->around()));
  node->start_ns = clock_ns();
  go_to(cursor, node);  // not before: nobody is to find a call that is half open
  // Last: what is queued from here on is the call's.
  if (cursor->meters.enter(node, cursor->thread)) node->start_ns = clock_ns();
}

// Reads the meters at the end of the call at `node`, before it is booked.
void read_at_end(Cursor* cursor, Node* node) {
  cursor->meters.enter(node->around(), cursor->thread);
  cursor->meters.closed(node, cursor->meters.read(node));
}

// Locks the tapes, if passes run.
class TapesLock {
 public:
  explicit TapesLock(Cursor* cursor) {
    if (!cursor->running->passes.empty()) locked_.emplace(cursor);
  }

 private:
  std::optional<PassLock> locked_;
};

// The call at `node` owns the nodes that are made from number `low` on, until `own_until`.
void own_from(Cursor* cursor, Node* node, int64_t low, bool is_backward = false) {
  node->owner = cursor->tapes.open(at::RecordFunction::currentThreadId(), low, node->code, is_backward);
}

void own_until(Node* node, int64_t high) {
  Owner ended = std::exchange(node->owner, {});
  if (ended.tape != nullptr) ended.tape->close(ended.index, node->code, high);
}

// `own_from` and `own_until`, for a call of a module or a function that begins, or has ended.
void own_calls(Cursor* cursor, Node* node, int64_t low) {
  if (!cursor->owns_nodes) return;
  TapesLock locked(cursor);
  own_from(cursor, node, low);
}
void end_own(Cursor* cursor, Node* node) {
  if (node->owner.tape == nullptr) return;
  TapesLock locked(cursor);
  own_until(node, next_number());
}

// Opens a call of a module or a function.
void open_call(Cursor* cursor, Node* node, bool is_new = false) {
  if (node->is_entry || is_new) cursor->meters.look_for_device(cursor->site);
  int64_t low = next_number();
  own_calls(cursor, node, low);
  open_node(cursor, node, low);
}

// Has Python close what an exception has left open inside of `node`. False: Python raised.
bool abort_down_to(Cursor* cursor, Node* node, Nanoseconds end_ns) {
  Owned end(PyLong_FromLongLong(end_ns));
  return is_done(call_method(cursor, names.abort_down_to, node, end.get()));
}

bool call_back(PyObject* self, PyObject* method, Node* node, PyObject* argument) {
  PyObject* callbacks = Cursor::of(self)->callbacks;
  if (callbacks == Py_None) return true;
  return is_done(call_method(callbacks, method, node, argument));
}

// Takes the entry's time out of the callers that it interrupted, and books the entry.
void end_entry(Cursor* cursor, Node* node, Nanoseconds end_ns) {
  Nanoseconds taken_ns = cursor->gives_time_back && node->is_entry ? end_ns - node->start_ns : 0;
  cursor->entered_ns += taken_ns;
  each_open(cursor, [&](Node* around) { around->start_ns += taken_ns; });
  cursor->log->book(node->code, node->start_ns, end_ns);
}

// While it lives, the thread does work of the profiler's own, which interrupts the calls that are open. See
// `Tracker.our_work`. If Python has raised meanwhile, that is time of the caller.
class OurWork {
 public:
  explicit OurWork(Cursor* cursor)
      : cursor_(cursor), on_pause_(cursor->on_pause), began_ns_(clock_ns()), entered_ns_(cursor->entered_ns) {}
  OurWork(const OurWork&) = delete;
  ~OurWork() {
    Node* node = cursor_->profiler;
    if (node == nullptr || !cursor_->gives_time_back || PyErr_Occurred()) return;
    if (cursor_->on_pause != on_pause_) return;  // measuring has ended in there
    Nanoseconds end_ns = clock_ns();
    node->start_ns = began_ns_ + cursor_->entered_ns - entered_ns_;  // without what has interrupted it
    if (end_ns > node->start_ns) end_entry(cursor_, node, end_ns);
  }

 private:
  Cursor* cursor_;
  PyObject* on_pause_;  // only compared
  Nanoseconds began_ns_, entered_ns_;
};

// Closes the call at `node`, of a function: the innermost one that is open.
void close_call(Cursor* cursor, Node* node, Nanoseconds end_ns) {
  read_at_end(cursor, node);
  go_to(cursor, node->around());
  end_own(cursor, node);
  if (node->is_entry)
    end_entry(cursor, node, end_ns);
  else
    cursor->log->book(node->code, node->start_ns, end_ns);
}

// Books an entry, and calls `on_pause`.
// outputs: None if it has returned nothing, or failed.
int finish_entry(Cursor* cursor, Node* node, Nanoseconds end_ns, PyObject* outputs, bool notifies = true) {
  end_entry(cursor, node, end_ns);
  if (!notifies || cursor->on_pause == Py_None) return 0;
  OurWork ours(cursor);
  Owned on_pause(Py_NewRef(cursor->on_pause)), end(PyLong_FromLongLong(end_ns));
  return is_done(PyObject_CallFunctionObjArgs(on_pause.get(), node, end.get(), outputs, nullptr)) ? 0 : -1;
}

bool is_fold_due(Cursor* cursor) { return is_full(cursor->log) || cursor->meters.is_fold_due(); }

int fold_if_due(Cursor* cursor) {
  if (!cursor->meters.fold_if_due()) return -1;
  if (!is_full(cursor->log)) return 0;
  return is_done(fold(cursor->log, kFields)) ? 0 : -1;
}

bool check_count(Py_ssize_t count, Py_ssize_t wanted) {
  if (count == wanted) return true;
  PyErr_Format(PyExc_TypeError, "%zd arguments, not %zd", wanted, count);
  return false;
}

PyObject* open_entry(PyObject* self, PyObject* node) {
  if (!is_node(node)) return nullptr;
  Cursor::of(self)->meters.look_for_device(Cursor::of(self)->site);
  open_node(Cursor::of(self), Node::of(node), next_number());
  Py_RETURN_NONE;
}

PyObject* close_entry(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count < 1 || count > 3 || !is_node(args[0])) return nullptr;
  PyObject* outputs = count > 1 ? args[1] : Py_None;
  Node* node = reinterpret_cast<Node*>(args[0]);
  Nanoseconds end_ns = count > 2 ? PyLong_AsLongLong(args[2]) : clock_ns();
  if (count > 2 && PyErr_Occurred()) return nullptr;
  read_at_end(Cursor::of(self), node);
  go_to(Cursor::of(self), node->around());
  if (finish_entry(Cursor::of(self), node, end_ns, outputs) < 0) return nullptr;
  Py_RETURN_NONE;
}

PyObject* py_look_for_device(PyObject* self, PyObject*) {
  Cursor::of(self)->meters.look_for_device(Cursor::of(self)->site);
  Py_RETURN_NONE;
}

// The nodes in a list. False: an exception.
bool as_nodes(PyObject* list, std::vector<Node*>* nodes) {
  for (Py_ssize_t place = 0; place < PyList_GET_SIZE(list); place++) {
    if (!is_node(PyList_GET_ITEM(list, place))) return false;
    nodes->push_back(Node::of(PyList_GET_ITEM(list, place)));
  }
  return true;
}

// Reads the meters where a pass that Python follows has moved to other owners.
// closes: the calls that ended, innermost first. opens: those that began, outermost first.
PyObject* owners_moved(PyObject* self, PyObject* args) {
  PyObject *closes, *opens;
  std::vector<Node*> closed, opened;
  if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &closes, &PyList_Type, &opens) || !as_nodes(closes, &closed) ||
      !as_nodes(opens, &opened))
    return nullptr;
  Cursor* cursor = Cursor::of(self);
  if (closed.empty() && opened.empty()) Py_RETURN_NONE;
  Node* left = closed.empty() ? opened.front()->around() : closed.front();
  memory::Reading now = cursor->meters.read(left);
  for (Node* node : closed) cursor->meters.closed(node, now);
  for (Node* node : opened) cursor->meters.opened(node, now);
  cursor->meters.enter(opened.empty() ? closed.back()->around() : opened.back(), cursor->thread);
  Py_RETURN_NONE;
}

PyObject* py_works_here(PyObject* self, PyObject*) { return PyBool_FromLong(works_here(Cursor::of(self))); }

PyObject* py_end_entry(PyObject* self, PyObject* args) {
  PyObject* node;
  long long end_ns;
  if (!PyArg_ParseTuple(args, "OL", &node, &end_ns) || !is_node(node)) return nullptr;
  end_entry(Cursor::of(self), Node::of(node), end_ns);
  Py_RETURN_NONE;
}

PyObject* append(PyObject* self, PyObject* call) {
  long long code, start_ns, end_ns;
  if (!PyArg_ParseTuple(call, "LLL", &code, &start_ns, &end_ns)) return nullptr;
  Cursor::of(self)->log->book(code, start_ns, end_ns);
  if (fold_if_due(Cursor::of(self)) < 0) return nullptr;
  Py_RETURN_NONE;
}

PyObject* last_booked_ns(PyObject* self, PyObject*) {
  return PyLong_FromLongLong(Cursor::of(self)->log->last_end_ns);
}

PyObject* fold_log(PyObject* self, PyObject*) {
  if (fold_if_due(Cursor::of(self)) < 0) return nullptr;
  Py_RETURN_NONE;
}

// The tape

// From Python: opens a slot of the call at `node`, which owns autograd nodes from `low` on.
PyObject* py_own_from(PyObject* self, PyObject* args) {
  PyObject* node;
  long long low;
  int is_backward = 0;
  if (!PyArg_ParseTuple(args, "OL|p", &node, &low, &is_backward) || !is_node(node)) return nullptr;
  TapesLock locked(Cursor::of(self));
  own_from(Cursor::of(self), Node::of(node), low, is_backward);
  Py_RETURN_NONE;
}

// From Python: closes the slot of the call at `node`, which owns no autograd nodes from `high` on.
PyObject* py_own_until(PyObject* self, PyObject* args) {
  PyObject* node;
  long long high;
  if (!PyArg_ParseTuple(args, "OL", &node, &high) || !is_node(node)) return nullptr;
  TapesLock locked(Cursor::of(self));
  own_until(Node::of(node), high);
  Py_RETURN_NONE;
}

// The calls that own the autograd node with this number, outermost first: of each, a value that is
// equal for this call alone, and its code. None if several threads have made a node with this number:
// nobody can tell whose it is.
PyObject* owners_of(PyObject* self, PyObject* args) {
  long long value;
  int is_last = 0;  // not used: the tape keeps all calls as long as there is room
  if (!PyArg_ParseTuple(args, "L|p", &value, &is_last)) return nullptr;
  Cursor* cursor = Cursor::of(self);
  TapesLock locked(cursor);
  Owner found;
  int threads = 0;
  cursor->tapes.each([&](Tape& tape) {
    int64_t index = tape.find(value);
    if (index == kNone) return;
    found = {&tape, index};
    threads++;
  });
  if (threads > 1) Py_RETURN_NONE;
  Owned chain(PyList_New(0));
  for (; chain && found.index != kNone; found = cursor->tapes.around(found)) {
    Owned one(Py_BuildValue("((LL)L)", (long long)(intptr_t)found.tape, (long long)found.index,
                            (long long)found.code()));
    if (!one || PyList_Append(chain.get(), one.get()) < 0) return nullptr;
  }
  if (!chain || PyList_Reverse(chain.get()) < 0) return nullptr;
  return Py_NewRef(chain.get());
}

// How many slots there are, and how many were looked at to find owners; for tests.
PyObject* tape_sizes(PyObject* self, void*) {
  long long slots = 0, steps = 0;
  Cursor::of(self)->tapes.each([&](const Tape& tape) { slots += tape.size(), steps += tape.steps; });
  return Py_BuildValue("(LL)", slots, steps);
}

}  // namespace
