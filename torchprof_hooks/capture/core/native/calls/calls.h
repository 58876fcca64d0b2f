// How calls of all kinds begin, end, and are booked.

#pragma once

#include "../backward/ties.h"

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
  cursor->site = node;  // not before: whoever looks meanwhile finds nothing half open
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

bool call_back(PyObject* self, PyObject* method, Node* node, PyObject* argument) {
  PyObject* callbacks = Cursor::of(self)->callbacks;
  if (callbacks == Py_None) return true;
  return is_done(call_method(callbacks, method, node, argument));
}

// The autograd nodes that were made since the call at `node` began are its own.
void own_nodes(Cursor* cursor, Node* node) {
  int64_t high = next_number();
  if (high != node->low)
    cursor->intervals.insert(cursor->intervals.end(), {node->code, node->low, high});
}

// Gives the callers that an entry has interrupted their time back, books the entry, and has
// a record made of its intervals. -1: an exception.
int end_entry(PyObject* self, Node* node, Nanoseconds end_ns, PyObject* outputs) {
  Cursor* cursor = Cursor::of(self);
  // A part of a profiled function ends as entries do, and interrupts nothing.
  Nanoseconds taken_ns = cursor->gives_time_back && node->is_entry ? end_ns - node->start_ns : 0;
  cursor->entered_ns += taken_ns;
  bool is_inside_call = false, is_in_frame = false;
  for (Node* around = cursor->site; around != cursor->outside && around->caller;
       around = around->around()) {
    around->start_ns += taken_ns;
    is_inside_call |= around->is_called && !around->is_frame;
    is_in_frame |= around->is_frame;
  }
  cursor->log->book(node->code, node->start_ns, end_ns);
  if (cursor->intervals.empty() || is_inside_call) return 0;  // the call around takes them
  if (node->is_function && cursor->site == cursor->outside) {  // a record each would be too many
    if (cursor->intervals.size() <= kFields * kLooseAt) return 0;
    return is_done(call_method(self, names.keep_loose)) ? 0 : -1;
  }
  int kept = is_in_frame ? 0 : keep_here(self, node->low, outputs);
  if (kept != 0) return std::min(kept, 0);
  Owned low(PyLong_FromLongLong(node->low));
  return is_done(call_method(self, names.keep_intervals, low.get(), outputs)) ? 0 : -1;
}

// Whether `on_pause` is told of the end of an entry. kIfPause: if `tell_of_pause` says so, in
// Python: not if it has failed, say.
enum class Told { kNever, kIfPause, kAlways };

// Books an entry, and tells of its end. What that takes falls into the time of the caller,
// and is a cost there.
int finish_entry(PyObject* self, Node* node, Nanoseconds end_ns, PyObject* outputs, Told told = Told::kIfPause) {
  Cursor* cursor = Cursor::of(self);
  Nanoseconds began_ns = clock_ns();
  if (end_entry(self, node, end_ns, outputs) < 0) return -1;
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
    Cursor::of(self)->site = Node::of(node)->around();  // nobody closes it
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
  Cursor::of(self)->site = node->around();
  if (finish_entry(self, node, end_ns, outputs) < 0) return nullptr;
  Py_RETURN_NONE;
}

PyObject* py_works_here(PyObject* self, PyObject*) {
  int is_here = works_here(self);
  return is_here < 0 ? nullptr : PyBool_FromLong(is_here);
}

PyObject* py_end_entry(PyObject* self, PyObject* args) {
  PyObject *node, *outputs;
  long long end_ns;
  if (!PyArg_ParseTuple(args, "OLO", &node, &end_ns, &outputs) || !is_node(node)) return nullptr;
  if (end_entry(self, Node::of(node), end_ns, outputs) < 0) return nullptr;
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

// Intervals

bool from_list(PyObject* list, std::vector<int64_t>* numbers) {
  Owned fast(PySequence_Fast(list, "intervals must be a list"));
  if (!fast) return false;
  for (Py_ssize_t place = 0; place < PySequence_Fast_GET_SIZE(fast.get()); place++)
    numbers->push_back(PyLong_AsLongLong(PySequence_Fast_GET_ITEM(fast.get(), place)));
  return !PyErr_Occurred();
}

PyObject* own(PyObject* self, PyObject* intervals) {
  if (!from_list(intervals, &Cursor::of(self)->intervals)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* take_intervals(PyObject* self, PyObject* args) {
  long long low;
  if (!PyArg_ParseTuple(args, "L", &low)) return nullptr;
  return as_list(take_from(Cursor::of(self), low));
}

PyObject* get_intervals(PyObject* self, void*) {
  return as_list(Cursor::of(self)->intervals);
}

PyObject* interval_count(PyObject* self, void*) {
  return PyLong_FromSize_t(Cursor::of(self)->intervals.size() / kFields);
}

PyObject* add_record(PyObject* self, PyObject* args) {
  PyObject* flat;
  long long low;
  unsigned long long thread = 0;
  std::vector<int64_t> numbers;
  if (!PyArg_ParseTuple(args, "OL|K", &flat, &low, &thread) || !from_list(flat, &numbers)) return nullptr;
  return make_record(Cursor::of(self), numbers, low, thread ? thread : at::RecordFunction::currentThreadId());
}

}  // namespace
