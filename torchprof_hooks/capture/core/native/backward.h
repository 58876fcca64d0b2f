// The nodes of a backward pass are booked on the calls that made them.

#pragma once

#include "cursor.h"

#include <ATen/record_function.h>
#include <c10/util/SmallVector.h>

namespace {

// Holds the interpreter's lock in a callback of the engine's, which no exception can
// pass: what is raised in there (by the handler of a signal, say) is raised again when
// the pass ends.
class WithPython {
 public:
  explicit WithPython(Cursor* cursor) : cursor_(cursor), state_(PyGILState_Ensure()) {
    PyErr_Fetch(&type_, &value_, &traceback_);
  }
  WithPython(const WithPython&) = delete;
  WithPython& operator=(const WithPython&) = delete;
  ~WithPython() {
    if (PyErr_Occurred()) keep();
    PyErr_Restore(type_, value_, traceback_);
    PyGILState_Release(state_);
  }

 private:
  void keep() {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != nullptr) PyException_SetTraceback(value, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    if (cursor_->raised == nullptr)
      cursor_->raised = value;
    else
      Py_XDECREF(value);
  }

  Cursor* cursor_;
  PyGILState_STATE state_;
  PyObject *type_, *value_, *traceback_;
};

// Raises what could not be raised where it was; whether there was anything.
bool raise_again(Cursor* cursor) {
  PyObject* raised = cursor->raised;
  if (raised == nullptr) return false;
  cursor->raised = nullptr;
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised)), raised);
  Py_DECREF(raised);
  return true;
}

// The node that Python gives for something that was not met yet; null if it raised.
Node* ask(Cursor* cursor, PyObject* method, Node* around, PyObject* key) {
  WithPython with(cursor);
  Owned given(key);
  Owned found(PyObject_CallMethodObjArgs(reinterpret_cast<PyObject*>(cursor), method, object(around),
                                         given.get(), nullptr));
  if (!found || !PyObject_TypeCheck(found.get(), node_type)) return nullptr;
  return reinterpret_cast<Node*>(found.get());  // `sites` has it
}

Node* backward_of(Cursor* cursor, Node* around, int64_t code) {
  Node*& known = around->backward.by_code[code];
  if (known == nullptr) {
    WithPython with(cursor);
    known = ask(cursor, names.backward_site, around, PyLong_FromLongLong(code));
  }
  return known;
}

Node* named(Cursor* cursor, Node* around, const char* name) {
  Node*& known = around->backward.by_name[name];
  if (known == nullptr) {
    WithPython with(cursor);
    known = ask(cursor, names.site_of_node, around, PyUnicode_FromString(name));
  }
  return known;
}

// Closes what an exception has left open inside of `node`.
void abort_down_to(Cursor* cursor, Node* node, Nanoseconds now_ns) {
  WithPython with(cursor);
  Owned now(PyLong_FromLongLong(now_ns));
  Owned done(PyObject_CallMethodObjArgs(reinterpret_cast<PyObject*>(cursor), names.abort_down_to,
                                        object(node), now.get(), nullptr));
}

// The meters are told what has closed (innermost first) and opened (outermost first).
void tell_of_move(Cursor* cursor, const std::vector<Node*>& closed, const std::vector<Node*>& opened) {
  WithPython with(cursor);
  Owned closes(PyList_New(0)), opens(PyList_New(0));
  for (Node* node : closed) PyList_Append(closes.get(), object(node));
  for (Node* node : opened) PyList_Append(opens.get(), object(node));
  Owned done(PyObject_CallMethodObjArgs(cursor->meters, names.moved, closes.get(), opens.get(), nullptr));
}

// Goes over to other owners: closes all but `kept` of those that are open, opens others.
void move(Cursor* cursor, Pass& pass, size_t kept, const std::vector<OpenBackward>& opens,
          Nanoseconds now_ns) {
  if (cursor->site != pass.owner()) abort_down_to(cursor, pass.owner(), now_ns);
  std::vector<Node*> closed, opened;
  TensorMeter* tensors = tensors_of(cursor);
  memory::Reading bytes{};
  if (tensors != nullptr) bytes = tensors->read(pass.owner());
  DeviceMeter* device = device_of(cursor);
  Stamp stamp;
  Nanoseconds reading_ns = 0;
  if (device != nullptr) {
    Nanoseconds began_ns = clock_ns();
    stamp = device->stamp();
    reading_ns = clock_ns() - began_ns;
  }
  int64_t number = pass.makes_graph ? next_number() : 0;
  while (pass.open.size() > kept) {
    Node* node = pass.open.back().node;
    pass.open.pop_back();
    cursor->log->book(node->code, node->start_ns, now_ns);
    if (tensors != nullptr) tensors->closed(node, bytes);
    if (device != nullptr) device->closed(node, stamp);
    if (pass.makes_graph && number != node->low)
      cursor->intervals.insert(cursor->intervals.end(), {node->code, node->low, number});
    if (cursor->reads_meters) closed.push_back(node);
  }
  pass.owner()->reading_ns += reading_ns;
  for (const OpenBackward& one : opens) {
    one.node->start_ns = now_ns + reading_ns;
    if (tensors != nullptr) tensors->opened(one.node, bytes);
    if (device != nullptr) device->opened(one.node, stamp);
    if (pass.makes_graph) one.node->low = number;
    pass.open.push_back(one);
    if (cursor->reads_meters) opened.push_back(one.node);
  }
  cursor->site = pass.owner();
  cursor->site->arrivals += 1;
  if (cursor->reads_meters) tell_of_move(cursor, closed, opened);
}

// The intervals that tell whose the node with this number is, which `thread` has made.
std::shared_ptr<Intervals> intervals_of(Cursor* cursor, Pass& pass, int64_t number, uint64_t thread) {
  const auto& current = pass.current;
  if (current && current->low <= number && number < current->high) return current;
  if (pass.calls && pass.calls->low <= number && number < pass.calls->high) return pass.calls;
  auto found = cursor->records.find(thread);
  return found == cursor->records.end() ? nullptr : found->second.find(number);
}

void node_begins(Cursor* cursor, Pass& pass, const at::RecordFunction& node) {
  int64_t number = node.seqNr();
  if (number < 0) {  // accumulates a gradient: belongs to the node before, if there is one
    if (!pass.has_begun()) move(cursor, pass, 0, {}, clock_ns());
    return;
  }
  auto intervals = intervals_of(cursor, pass, number, node.forwardThreadId());
  bool is_current = intervals != nullptr && intervals == pass.current;
  int near = is_current && !pass.open.empty() ? pass.open.back().interval : -1;
  if (is_current && near < 0 && pass.open.size() > 1) near = pass.open[pass.open.size() - 2].interval;
  int leaf = intervals ? intervals->find(number, near) : -1;
  if (!pass.names_nodes && is_current && !pass.open.empty() && leaf == near) return;
  if (!pass.names_nodes && leaf < 0 && pass.open.empty()) return;
  std::vector<int> chain;  // innermost first
  for (int one = leaf; one >= 0; one = intervals->all[size_t(one)].parent) chain.push_back(one);
  std::reverse(chain.begin(), chain.end());
  size_t kept = 0;
  while (is_current && kept < chain.size() && kept < pass.open.size() &&
         pass.open[kept].interval == chain[kept])
    kept++;
  std::vector<OpenBackward> opens;
  Node* around = kept ? pass.open[kept - 1].node : pass.base;
  for (size_t place = kept; place < chain.size(); place++) {
    around = backward_of(cursor, around, intervals->all[size_t(chain[place])].code);
    if (around == nullptr) return;
    opens.push_back({chain[place], around});
  }
  if (pass.names_nodes && !around->is_function) {
    around = named(cursor, around, node.name());
    if (around == nullptr) return;
    opens.push_back({-1, around});
  }
  if (opens.empty() && kept == pass.open.size()) return;
  move(cursor, pass, kept, opens, clock_ns());
  pass.current = intervals;
}

// Those whose pass runs the node that begins or ends in this thread: the engine runs
// parts of a pass in a thread of the device's.
// Whether there are any.
template <class Function>
bool each_running(const at::RecordFunction& node, Function function) {
  // A copy: what is called may begin and end passes.
  c10::SmallVector<std::shared_ptr<Running>, 4> found(running_here.begin(), running_here.end());
  bool is_elsewhere = found.empty();
  if (is_elsewhere && running_count == 0) return false;
  if (is_elsewhere) {
    std::lock_guard<std::mutex> locked(running_mutex);
    found.append(all_running.begin(), all_running.end());
  }
  pthread_t thread = pthread_self();
  int task = torch::autograd::get_current_graph_task_id();
  bool is_any = false;
  for (const auto& running : found) {
    std::lock_guard<std::recursive_mutex> locked(running->mutex);
    if (running->passes.empty()) continue;  // ended meanwhile
    Pass& pass = running->passes.back();
    bool is_here = pthread_equal(pass.thread, thread);
    bool may_be_its = is_here || (is_elsewhere && node.forwardThreadId() == pass.made_by);
    if (pass.task == -1 && may_be_its) pass.task = task;
    if (!is_here && pass.task != task) continue;
    is_any = true;
    function(running->cursor, pass);
  }
  return is_any;
}

}  // namespace
