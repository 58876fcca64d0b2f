// The nodes of a backward pass are booked on the calls that made them.

#pragma once

#include "../cursor.h"

#include <ATen/record_function.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstring>

namespace {

// The nodes that a pass makes (create_graph=True) belong to the calls whose backward makes
// them. Each thread numbers the nodes that it makes, and the engine runs parts of a pass in
// other threads than the one that is followed. So both numbers of an interval must come from
// one thread: where a pass goes on in another one, all open intervals end, and begin anew.

// Where intervals of the nodes belong that a thread has made in passes.
std::vector<int64_t>& made_in(Cursor* cursor, uint64_t thread) {
  Pass& outermost = *cursor->running->passes.front();  // begun by the thread that is followed
  return thread == outermost.made_by ? cursor->intervals : outermost.elsewhere[thread];
}

// Ends the intervals of all open calls but the first `kept`, innermost first, at the number
// that was read last.
void own_made_nodes(Cursor* cursor, const Pass& pass, size_t kept) {
  for (size_t place = pass.open.size(); place > kept; place--) {
    const Node* node = pass.open[place - 1].node;
    if (node->low == pass.number) continue;
    std::vector<int64_t>& made = made_in(cursor, pass.counts_in);
    made.insert(made.end(), {node->code, node->low, pass.number});
  }
}

// Reads the counter of this thread. If that of another thread was read before, the intervals
// of all open calls end there, at the number that was read last, and begin anew here.
void count_here(Cursor* cursor, Pass& pass) {
  uint64_t here = at::RecordFunction::currentThreadId();
  if (here != pass.counts_in) {
    own_made_nodes(cursor, pass, 0);
    pass.counts_in = here;
    for (const OpenBackward& one : pass.open) one.node->low = next_number();
  }
  pass.number = next_number();
}

// The pass is about to go over to other owners: all open calls but the first `kept` end.
void own_before_move(Cursor* cursor, Pass& pass, size_t kept) {
  count_here(cursor, pass);
  own_made_nodes(cursor, pass, kept);
}

// A node has ended. This thread's counter is read now, as the next node may run in another
// thread, which cannot read it.
void count_after_node(Pass& pass) {
  if (pass.counts_in == at::RecordFunction::currentThreadId()) pass.number = next_number();
}

// Holds the GIL in a callback of the engine, and keeps the cursor. What Python does may end the
// pass: whoever goes on after that asks `Pass::is_over` before anything else. No exception of
// Python's can pass through the engine: what is raised meanwhile (by the handler of a signal,
// say) is kept in `Cursor::raised`, and raised again when the pass ends.
class WithPython : WithGil {
 public:
  explicit WithPython(Cursor* cursor) : cursor_(cursor) { Py_INCREF(cursor); }  // which the pass held
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

// Asks Python for the node of something that was not met yet: borrowed, or null if Python has
// raised. Takes over the reference `key`; the caller has the GIL, having made that.
Node* ask(Cursor* cursor, PyObject* method, Node* around, PyObject* key) {
  WithPython with(cursor);
  Owned given(key);
  Owned found(call_method(cursor, method, around, given.get()));
  if (!found || !PyObject_TypeCheck(found.get(), node_type)) return nullptr;
  return Node::of(found.get());  // `sites` holds it
}

Node* backward_of(Cursor* cursor, Node* around, int64_t code) {
  Node* known = around->backward.by_code.find(uint64_t(code));
  if (known != nullptr) return known;
  WithPython with(cursor);
  known = ask(cursor, names.backward_site, around, PyLong_FromLongLong(code));
  if (known != nullptr) around->backward.by_code.insert(uint64_t(code), known);
  return known;
}

Node* named(Cursor* cursor, Node* around, const char* name) {
  Node*& known = around->backward.by_name[name];  // stays valid if others are added meanwhile
  if (known != nullptr) return known;
  WithPython with(cursor);
  return known = ask(cursor, names.site_of_node, around, PyUnicode_FromString(name));
}

// Closes what an exception has left open inside of `node`.
void abort_down_to(Cursor* cursor, Node* node, Nanoseconds now_ns) {
  WithPython with(cursor);
  Owned now(PyLong_FromLongLong(now_ns));
  is_done(call_method(cursor, names.abort_down_to, node, now.get()));
}

// The meters are told what has closed (innermost first) and opened (outermost first).
void tell_of_move(Cursor* cursor, const std::vector<Node*>& closed, const std::vector<Node*>& opened) {
  WithPython with(cursor);
  Owned closes(PyList_New(0)), opens(PyList_New(0));
  for (Node* node : closed) PyList_Append(closes.get(), node);
  for (Node* node : opened) PyList_Append(opens.get(), node);
  is_done(call_method(cursor->meters, names.moved, closes.get(), opens.get()));
}

// The pass goes over to other owners: closes all open calls but the first `kept`, and opens
// others. The mutex of the passes is held, the GIL maybe not; Python code may run in here.
// now_ns: 0: the present time.
void move(Cursor* cursor, Pass& pass, size_t kept, c10::ArrayRef<OpenBackward> opens = {}, Nanoseconds now_ns = 0) {
  auto stays = pass.shared_from_this();
  if (now_ns == 0) now_ns = clock_ns();
  if (cursor->site != pass.owner()) abort_down_to(cursor, pass.owner(), now_ns);
  if (pass.is_over) return;
  std::vector<Node*> closed, opened;
  MemoryMeter* meter = memory_of(cursor);
  memory::Reading bytes{};
  bool is_timed = meter != nullptr && meter->is_timed();
  if (meter != nullptr && !is_timed) bytes = meter->read(pass.owner());
  DeviceMeter* device = device_of(cursor);
  Stamp stamp;
  Nanoseconds reading_ns = 0;
  if (device != nullptr || is_timed) {
    Nanoseconds began_ns = clock_ns();
    if (is_timed) bytes = meter->read(pass.owner());
    if (device != nullptr) stamp = device->stamp();
    reading_ns = clock_ns() - began_ns;
  }
  if (pass.makes_graph) own_before_move(cursor, pass, kept);
  while (pass.open.size() > kept) {
    Node* node = pass.open.back().node;
    pass.open.pop_back();
    cursor->log->book(node->code, node->start_ns, now_ns);
    if (meter != nullptr) meter->closed(node, bytes);
    if (device != nullptr) device->closed(node, stamp);
    if (cursor->reads_meters) closed.push_back(node);
  }
  pass.owner()->reading_ns += reading_ns;
  for (const OpenBackward& one : opens) {
    one.node->start_ns = now_ns + reading_ns;
    if (meter != nullptr) meter->opened(one.node, bytes);
    if (device != nullptr) device->opened(one.node, stamp);
    if (pass.makes_graph) one.node->low = pass.number;
    pass.open.push_back(one);
    if (cursor->reads_meters) opened.push_back(one.node);
  }
  cursor->site = pass.owner();
  if (cursor->reads_meters) tell_of_move(cursor, closed, opened);
}

bool may_hold(const std::shared_ptr<Intervals>& intervals, int64_t number) {
  return intervals && intervals->low <= number && number < intervals->high;
}

// The intervals, other than the current ones of the pass, that may hold the number of a node
// that `thread` has made, and so tell whose it is; null: there are none.
std::shared_ptr<Intervals> intervals_of(Cursor* cursor, Pass& pass, int64_t number, uint64_t thread) {
  if (thread == pass.made_by && pass.calls && may_hold(pass.calls->tree(), number)) return pass.calls->tree();
  auto found = cursor->records.find(thread);
  return found == cursor->records.end() ? nullptr : found->second.find(number, &cursor->owner_steps);
}

// If a call around the pass owns the node with this number, it is in the tree of these calls
// from now on. The tree may get more intervals in front: then those that are open move.
void look_back_to(Cursor* cursor, Pass& pass, int64_t number) {
  std::shared_ptr<Intervals> before = pass.calls->tree();
  int added = pass.calls->look_back_to(number, &cursor->owner_steps);
  if (added == 0 || pass.current != before) return;
  pass.current = pass.calls->tree();
  for (OpenBackward& one : pass.open)
    if (one.interval >= 0) one.interval += added;
}

// The engine's own node, at which a pass with several roots begins: no function of the
// program has made it.
bool is_graph_root(const char* name) { return std::strcmp(name, "torch::autograd::GraphRoot") == 0; }

void node_begins(Cursor* cursor, Pass& pass, const at::RecordFunction& node) {
  if (pass.makes_graph) count_here(cursor, pass);
  if (pass.names_nodes && !pass.has_begun() && is_graph_root(node.name())) return;
  int64_t number = node.seqNr();
  if (number < 0) {  // accumulates a gradient: belongs to the node before, if there is one
    if (!pass.has_begun()) move(cursor, pass, 0);
    return;
  }
  uint64_t thread = node.forwardThreadId();  // by whose counter the node has its number
  if (pass.calls && thread == pass.made_by) look_back_to(cursor, pass, number);
  bool is_current = thread == pass.current_of && may_hold(pass.current, number);
  std::shared_ptr<Intervals> others;
  if (!is_current) others = intervals_of(cursor, pass, number, thread);
  const Intervals* intervals = is_current ? pass.current.get() : others.get();
  // Each open call is an interval inside of the one before, but for the last, which may be an
  // autograd node under its own name: that is not kept.
  size_t kept = is_current ? pass.open.size() : 0;
  if (kept != 0 && pass.open[kept - 1].interval < 0) kept--;
  Way entered;
  if (intervals) kept -= intervals->go(kept ? pass.open[kept - 1].interval : -1, number, &entered);
  if (entered.empty() && kept == pass.open.size() && !pass.names_nodes) return;  // as mostly
  auto stays = pass.shared_from_this();
  c10::SmallVector<OpenBackward, 16> opens;
  Node* around = kept ? pass.open[kept - 1].node : pass.base;
  for (int one : entered) {
    around = backward_of(cursor, around, intervals->all[size_t(one)].code);
    if (around == nullptr || pass.is_over) return;
    opens.push_back({one, around});
  }
  if (pass.names_nodes && !around->is_function) {
    around = named(cursor, around, node.name());
    if (around == nullptr || pass.is_over) return;
    opens.push_back({-1, around});
  }
  if (opens.empty() && kept == pass.open.size()) return;
  move(cursor, pass, kept, opens);
  if (is_current || pass.is_over) return;
  pass.current = std::move(others);
  pass.current_of = thread;
}

thread_local int seen_passes = 0;  // passes that run in this thread, and were started from Python

// Calls `function` with the innermost pass of a cursor, if it is this pass that runs the node
// that begins or ends in this thread. Returns whether it is.
// is_elsewhere: whether no pass of a cursor was begun in this thread.
template <class Function>
bool call_if_run(Running& running, const at::RecordFunction& node, bool is_elsewhere, Function& function) {
  std::lock_guard<std::recursive_mutex> locked(running.mutex);
  if (running.passes.empty()) return false;  // ended meanwhile
  Pass& pass = *running.passes.back();
  bool is_here = pthread_equal(pass.thread, pthread_self());
  // A pass that Python has begun in this thread, and no cursor follows, may run nodes that
  // the followed thread has made, too: who has made them tells nothing then.
  bool is_of_engine = is_elsewhere && seen_passes == 0;
  bool may_be_its = is_here || (is_of_engine && node.forwardThreadId() == pass.made_by);
  if (pass.task == -1 && may_be_its) pass.task = torch::autograd::get_current_graph_task_id();
  if (!is_here && pass.task != torch::autograd::get_current_graph_task_id()) return false;
  function(running.cursor, pass);
  return true;
}

// Calls `function` with each cursor, and its pass, that runs the node that begins or ends in
// this thread. That may be a thread of the engine: it has one for each device. Returns whether
// there is any.
template <class Function>
bool each_running(const at::RecordFunction& node, Function function) {
  // Works on copies of the pointers: `function` may begin and end passes, and change the lists.
  const RunningList* begun_here = running_here;
  if (begun_here != nullptr && begun_here->size() == 1) {  // mostly
    std::shared_ptr<Running> only = begun_here->front();
    return call_if_run(*only, node, false, function);
  }
  c10::SmallVector<std::shared_ptr<Running>, 4> found;
  if (begun_here != nullptr) found.append(begun_here->begin(), begun_here->end());
  bool is_elsewhere = found.empty();
  if (is_elsewhere && running_count == 0) return false;
  if (is_elsewhere) {
    std::lock_guard<std::mutex> locked(running_mutex);
    found.append(all_running.begin(), all_running.end());
  }
  bool is_any = false;
  for (const auto& running : found) is_any |= call_if_run(*running, node, is_elsewhere, function);
  return is_any;
}

}  // namespace
