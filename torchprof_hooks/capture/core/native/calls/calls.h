// How calls of all kinds begin, end, and are booked.

#pragma once

#include "../cursor.h"

#include <optional>

namespace {

// Whether a hook that runs now is for this cursor. -1: an exception.
int works_here(PyObject* self) {
  Cursor* cursor = Cursor::of(self);
  if (long(PyThread_get_thread_ident()) == cursor->thread) return 1;
  if (cursor->passes == nullptr || PyList_GET_SIZE(cursor->passes) == 0) return 0;
  // The cursor has a pass that runs, but this thread does not work for any.
  if (torch::autograd::get_current_graph_task_id() == -1) return 0;
  Owned answer(call_method(self, names.works_in_pass));
  return answer ? PyObject_IsTrue(answer.get()) : -1;
}

bool look_for_devices(PyObject* self) {
  Cursor* cursor = Cursor::of(self);
  if (!cursor->watches) return true;
  Nanoseconds began_ns = clock_ns();
  if (!is_done(call_method(cursor->meters, names.look_for_devices, self))) return false;
  cursor->site->reading_ns += clock_ns() - began_ns;
  return true;
}

// Opens a call, and has the meters read. If one raises, this returns false, and the call
// stays open: the caller has to see to it.
// low: number of the first autograd node that is its own.
bool open_node(PyObject* self, Node* node, int64_t low) {
  Cursor* cursor = Cursor::of(self);
  node->low = low;
  Nanoseconds began_ns = 0;
  if (MemoryMeter* meter = memory_of(cursor)) {
    if (meter->is_timed()) began_ns = clock_ns();
    meter->opened(node, meter->read(node->around()));
  }
  node->start_ns = clock_ns();
  if (began_ns != 0) node->around()->reading_ns += node->start_ns - began_ns;
  go_to(cursor, node);  // not before: whoever looks meanwhile finds nothing half open
  if (cursor->reads_meters && !is_done(call_method(cursor->meters, names.opened, node))) return false;
  if (DeviceMeter* device = device_of(cursor)) {  // last: all that is queued next is the call's
    device->opened(node, device->stamp());
    Nanoseconds now_ns = clock_ns();
    node->around()->reading_ns += now_ns - std::exchange(node->start_ns, now_ns);
  }
  return true;
}

// Has the meters read for the call at `node`, which has ended, and is not booked yet. False:
// an exception.
bool read_at_end(PyObject* self, Node* node, Nanoseconds end_ns) {
  Cursor* cursor = Cursor::of(self);
  DeviceMeter* device = device_of(cursor);
  MemoryMeter* meter = memory_of(cursor);
  bool is_timed = meter != nullptr && meter->is_timed();
  if (device != nullptr) device->closed(node, device->stamp());
  if (is_timed) meter->closed(node, meter->read(node));
  if (!cursor->reads_meters && (device != nullptr || is_timed))
    node->around()->reading_ns += clock_ns() - end_ns;
  if (meter != nullptr && !is_timed) meter->closed(node, meter->read(node));
  if (!cursor->reads_meters) return true;
  Owned end(PyLong_FromLongLong(end_ns));
  return is_done(call_method(cursor->meters, names.closing, node, end.get()));
}

// Guards the tapes while passes run.
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
  node->tape = tape_here(cursor);
  int64_t outer = node->tape == &cursor->own_tape ? kNone : cursor->own_tape.top();
  node->entry = node->tape->open(low, node->code, is_backward, outer);
}

void own_until(Node* node, int64_t high) {
  Tape* tape = std::exchange(node->tape, nullptr);
  if (tape != nullptr && tape->is_open(node->entry, node->code)) tape->close(node->entry, high);
}

// A call of a module or a function begins, or has ended.
void own_calls(Cursor* cursor, Node* node, int64_t low) {
  if (!cursor->divides) return;
  TapesLock locked(cursor);
  own_from(cursor, node, low);
}
void end_own(Cursor* cursor, Node* node) {
  if (node->tape == nullptr) return;
  TapesLock locked(cursor);
  own_until(node, next_number());
}

bool call_back(PyObject* self, PyObject* method, Node* node, PyObject* argument) {
  PyObject* callbacks = Cursor::of(self)->callbacks;
  if (callbacks == Py_None) return true;
  return is_done(call_method(callbacks, method, node, argument));
}

// Gives the callers that an entry has interrupted their time back, and books the entry.
void end_entry(Cursor* cursor, Node* node, Nanoseconds end_ns) {
  Nanoseconds taken_ns = cursor->gives_time_back && node->is_entry ? end_ns - node->start_ns : 0;
  cursor->entered_ns += taken_ns;
  for (Node* around = cursor->site; around != cursor->outside && around->caller; around = around->around())
    around->start_ns += taken_ns;
  cursor->log->book(node->code, node->start_ns, end_ns);
}

// Whether `on_pause` is told of the end of an entry. kIfPause: if `tell_of_pause` says so, in
// Python: not if it has failed, say.
enum class Told { kNever, kIfPause, kAlways };

// Books an entry, and tells of its end. What that takes falls into the time of the caller,
// and is a cost there.
int finish_entry(PyObject* self, Node* node, Nanoseconds end_ns, PyObject* outputs, Told told = Told::kIfPause) {
  Cursor* cursor = Cursor::of(self);
  Nanoseconds began_ns = clock_ns();
  end_entry(cursor, node, end_ns);
  if (told != Told::kNever && cursor->on_pause != Py_None) {
    Owned on_pause(Py_NewRef(cursor->on_pause)), end(PyLong_FromLongLong(end_ns));
    PyObject* done =
        told == Told::kAlways
            ? PyObject_CallFunctionObjArgs(on_pause.get(), node, end.get(), nullptr)
            : call_method(self, names.tell_of_pause, node, outputs, end.get());
    if (!is_done(done)) return -1;
  }
  node->around()->reading_ns += clock_ns() - began_ns;
  return 0;
}

bool is_fold_due(Cursor* cursor) {
  MemoryMeter* meter = memory_of(cursor);
  return cursor->log->kept.size() >= kFoldAt || (meter != nullptr && meter->kept.size() >= kFoldAt);
}

int fold_if_due(Cursor* cursor) {
  MemoryMeter* meter = memory_of(cursor);
  if (meter != nullptr && meter->kept.size() >= kFoldAt && !is_done(fold(meter, kMemoryFields))) return -1;
  if (cursor->log->kept.size() < kFoldAt) return 0;
  return is_done(fold(cursor->log, kFields)) ? 0 : -1;
}

bool check_count(Py_ssize_t count, Py_ssize_t wanted) {
  if (count == wanted) return true;
  PyErr_Format(PyExc_TypeError, "%zd arguments, not %zd", wanted, count);
  return false;
}

PyObject* open_entry(PyObject* self, PyObject* node) {
  if (!is_node(node) || !look_for_devices(self)) return nullptr;
  if (!open_node(self, Node::of(node), next_number())) {
    go_to(Cursor::of(self), Node::of(node)->around());  // nobody closes it
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* close_entry(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count < 1 || count > 3 || !is_node(args[0])) return nullptr;
  PyObject* outputs = count > 1 ? args[1] : Py_None;
  Node* node = reinterpret_cast<Node*>(args[0]);
  Nanoseconds end_ns = count > 2 ? PyLong_AsLongLong(args[2]) : clock_ns();
  if (count > 2 && PyErr_Occurred()) return nullptr;
  if (!read_at_end(self, node, end_ns)) return nullptr;
  go_to(Cursor::of(self), node->around());
  if (finish_entry(self, node, end_ns, outputs) < 0) return nullptr;
  Py_RETURN_NONE;
}

PyObject* py_works_here(PyObject* self, PyObject*) {
  int is_here = works_here(self);
  return is_here < 0 ? nullptr : PyBool_FromLong(is_here);
}

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

PyObject* py_is_booked(PyObject*, PyObject*) {
  Py_RETURN_FALSE;  // no interrupt comes between booking and closing a call here
}

PyObject* last_booked_ns(PyObject* self, PyObject*) {
  return PyLong_FromLongLong(Cursor::of(self)->log->last_end_ns);
}

PyObject* fold_log(PyObject* self, PyObject*) {
  if (fold_if_due(Cursor::of(self)) < 0) return nullptr;
  Py_RETURN_NONE;
}

// The tape

// From Python: the call at `site`, which has begun with the node of number `low`, takes an entry.
PyObject* py_own_from(PyObject* self, PyObject* args) {
  PyObject* node;
  long long low;
  int is_backward = 0;
  if (!PyArg_ParseTuple(args, "OL|p", &node, &low, &is_backward) || !is_node(node)) return nullptr;
  TapesLock locked(Cursor::of(self));
  own_from(Cursor::of(self), Node::of(node), low, is_backward);
  Py_RETURN_NONE;
}

// From Python: the call at `site` owns no node that is made from now on, with number `high`.
PyObject* py_own_until(PyObject* self, PyObject* args) {
  PyObject* node;
  long long high;
  if (!PyArg_ParseTuple(args, "OL", &node, &high) || !is_node(node)) return nullptr;
  TapesLock locked(Cursor::of(self));
  own_until(Node::of(node), high);
  Py_RETURN_NONE;
}

// The calls that own the node of a number, outermost first: of each, something that is equal for
// this call alone, and its code. The node is one that the followed thread has made, unless only
// others have made nodes with such a number. None if nobody can tell whose it is.
PyObject* owners_of(PyObject* self, PyObject* args) {
  long long value;
  int is_last = 0;  // all is kept as long as there is room
  if (!PyArg_ParseTuple(args, "L|p", &value, &is_last)) return nullptr;
  Cursor* cursor = Cursor::of(self);
  TapesLock locked(cursor);
  Owner found{&cursor->own_tape, cursor->own_tape.find(value)};
  for (auto& [_, tape] : cursor->tapes) {
    int64_t entry = tape.find(value);
    if (entry == kNone) continue;
    if (found.entry != kNone) Py_RETURN_NONE;
    found = {&tape, entry};
  }
  Owned chain(PyList_New(0));
  for (; chain && found.entry != kNone; found = around(cursor, found)) {
    Owned one(Py_BuildValue("((LL)L)", (long long)(intptr_t)found.tape, (long long)found.entry,
                            (long long)found.tape->entry(found.entry).code));
    if (!one || PyList_Append(chain.get(), one.get()) < 0) return nullptr;
  }
  if (!chain || PyList_Reverse(chain.get()) < 0) return nullptr;
  return Py_NewRef(chain.get());
}

// How many entries there are, and how many were looked at to find owners; for tests.
PyObject* tape_sizes(PyObject* self, void*) {
  Cursor* cursor = Cursor::of(self);
  long long entries = cursor->own_tape.size(), steps = cursor->own_tape.steps;
  for (auto& [_, tape] : cursor->tapes) entries += tape.size(), steps += tape.steps;
  return Py_BuildValue("(LL)", entries, steps);
}

}  // namespace
