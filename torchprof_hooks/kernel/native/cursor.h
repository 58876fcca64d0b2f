// A cursor, and the backward passes that run for it. See reference/cursor.py.

#pragma once

#include "backward/carried.h"
#include "log.h"
#include "meters/meters.h"
#include "node.h"
#include "tools.h"

#include <ATen/record_function.h>
#include <pthread.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

namespace {

// A call whose backward is open.
// owner: its index is kNone for an autograd node that is booked under its own name, and kEngine for
// the engine itself, until the first node runs. node: where the backward is booked.
struct OpenBackward {
  Owner owner;
  Node* node;
};

constexpr int64_t kEngine = -2;

// A run of the autograd engine (a backward pass), as one cursor follows it.
struct Pass : std::enable_shared_from_this<Pass> {
  PyObject* started;  // a BackwardPass, borrowed from `passes` of the cursor
  Node* base;
  Node* engine;  // where the engine's own time is booked; null: not separately
  Node* waiting;  // that of devices after the last node, until the first one begins; null: not separately
  bool opens;            // whether `base` is an entry that begins and ends with it
  bool makes_graph, names_nodes;
  std::vector<OpenBackward> open;  // outermost first
  uint64_t counts_in;  // the thread whose counter of nodes was read last
  int64_t number;      // and what that counter was
  std::pair<int64_t, uint64_t> node{-1, 0};  // the last one that began: its number, and who made it
  Nanoseconds ended_ns = 0;    // when the last node ended, or a pass that its hooks ran; 0: none has
  Nanoseconds entered_ns = 0;  // `Cursor::entered_ns` at that moment
  bool is_over = false;        // has been removed, maybe while a function still works on it
  Node* owner() const { return open.empty() ? base : open.back().node; }
  bool has_begun() const { return open.empty() || open.front().owner.index != kEngine; }
};

struct Cursor;

// How often this process was forked, with its parents.
std::atomic<int> forks{0};

// The running passes of one cursor, the innermost last. Outlives the cursor: when the last
// pass ends, another thread of the engine may be about to call us at a node.
struct Running {
  Cursor* cursor;  // lives while there are passes: each has a reference to it
  // A function that works on a pass keeps a pointer to it where Python code may run meanwhile and
  // end the pass: a signal handler that stops the profile, say.
  std::vector<std::shared_ptr<Pass>> passes;

  // Python code that runs under it may begin and end passes. In a fork, it is a new one: the thread that
  // had locked it is not there.
  std::recursive_mutex& mutex() {
    if (made_in_ != forks) {
      new (&mutex_) std::recursive_mutex();
      made_in_ = forks;
    }
    return mutex_;
  }

 private:
  std::recursive_mutex mutex_;
  int made_in_ = forks;
};

PyTypeObject* cursor_type;

struct CursorState {
  long thread = long(PyThread_get_thread_ident());  // the followed one; -1: it has ended
  Relaxed<Node*> site;  // borrowed, as are those below: `sites` owns them
  Node *outside, *garbage, *profiler;  // where collections are booked, and work of ours; null: they are not
  PyObject *sites = PyList_New(0), *passes = PyList_New(0), *on_pause = Py_NewRef(Py_None);
  // A CallListener and FunctionCalls, or None.
  PyObject *callbacks = Py_NewRef(Py_None), *functions = Py_NewRef(Py_None);
  Log* log = reinterpret_cast<Log*>(Log::make(log_type));
  Meters meters;
  Nanoseconds entered_ns;
  char gives_time_back = 1, owns_nodes, is_observing;
  // The function in whose open call operations are counted, or null; and what was counted so far.
  Node* counted;
  Work work;
  ska::flat_hash_set<uint64_t> without_work;  // operators for which there is no formula, by name
  Tapes tapes{at::RecordFunction::currentThreadId()};  // while passes run, the mutex of `running` guards them
  std::shared_ptr<Running> running = std::make_shared<Running>();
  PyObject* raised;  // an exception that could not pass through the engine (see WithPython), or null

  template <class Function>
  void each_held(Function function) {
    function(sites), function(passes), function(on_pause), function(callbacks);
    function(functions), function(log), function(raised), meters.each_held(function);
  }
};

struct Cursor : WithPart<Cursor, CursorState> {};

inline bool is_in_pass() { return torch::autograd::get_current_graph_task_id() != -1; }

// The cursors that observe this thread's operators: torch calls a thread-local callback of ours. It is
// off while no cursor wants that: in backward passes and steps of optimizers.
//
// While the engine runs a node, it installs the callbacks that were there when the pass began, and
// afterwards restores those of before. So a change that is made in a pass lasts until the node ends,
// and we add and remove our callback only outside of passes.
struct Observing {
  std::vector<Cursor*> cursors;  // owned references
  std::vector<Cursor*> left;     // also owned, until no operator runs that they have observed
  at::CallbackHandle handle = 0;
  int running = 0;  // how many operators run that a cursor has observed
  bool is_on = false, is_on_in_node = false, is_asking = false;

  ~Observing() {
    if ((cursors.empty() && left.empty()) || !Py_IsInitialized()) return;
    WithGil gil;
    for (auto* list : {&cursors, &left})
      for (Cursor* cursor : *list) Py_DECREF(cursor);
  }
  // Outside of passes, adds or removes the callback as needed. Returns whether torch has it.
  bool settle();
  void turn(bool on) {
    bool& is = is_in_pass() ? is_on_in_node : is_on;
    if (!settle() || (on == is && !is_in_pass())) return;
    if (on || is) on ? at::reenableCallback(handle) : at::disableCallback(handle);
    is = on;
  }
};

// Null in a thread whose operators no cursor has ever observed.
thread_local Observing* observing = nullptr;

Observing& make_observing() {
  struct Kept : Observing {
    ~Kept() { observing = nullptr; }
  };
  static thread_local Kept kept;
  return *(observing = &kept);
}

// Turns the callback on or off, after the thread has moved to another call, as that call wants.
inline void observe_if_wanted(Cursor* cursor) {
  Observing* here = observing;
  if (here == nullptr || cursor->site == nullptr) return;
  bool is_wanted = cursor->site->observes_operators || cursor->site->is_function;
  if (!is_in_pass()) here->is_on_in_node = false;
  if (is_wanted ? here->is_on && !is_in_pass() : !here->is_on_in_node) return;
  for (Cursor* one : here->cursors)
    if (one == cursor) return here->turn(is_wanted);
}

inline void go_to(Cursor* cursor, Node* node) {
  cursor->site = node;
  observe_if_wanted(cursor);
}

// Called in the child of a fork.
void forget_other_threads() {
  reset_meters_in_fork();
  forks++;
}

PyObject* cursor_new(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = Cursor::make(type);
  if (self != nullptr) Cursor::of(self)->running->cursor = Cursor::of(self);
  return self;
}

int cursor_clear(PyObject* self) {
  Cursor::of(self)->meters.unfollow(&Cursor::of(self)->site);
  Cursor::of(self)->site = Cursor::of(self)->outside = nullptr;
  Cursor::of(self)->garbage = Cursor::of(self)->profiler = nullptr;
  return Cursor::clear(self);
}

void cursor_dealloc(PyObject* self) {
  Cursor::of(self)->meters.unfollow(&Cursor::of(self)->site);
  Cursor::dealloc(self);
}

template <auto field>
PyObject* cursor_get(PyObject* self, void*) {
  PyObject* value = Cursor::of(self)->*field;
  return Py_NewRef(value ? value : Py_None);
}

template <auto field>
int cursor_set_node(PyObject* self, PyObject* value, void*) {
  if (value == nullptr || !is_node(value)) return -1;
  Cursor::of(self)->*field = Node::of(value);
  observe_if_wanted(Cursor::of(self));
  return 0;
}

template <auto which>
PyObject* cursor_get_meter(PyObject* self, void*) {
  PyObject* meter = Cursor::of(self)->meters.*which;
  return Py_NewRef(meter ? meter : Py_None);
}

int cursor_set_device(PyObject* self, PyObject* value, void*) { return Cursor::of(self)->meters.set_device(value); }

// Calls `function` with the node of each open call, innermost first.
template <class Function>
void each_open(Cursor* cursor, Function function) {
  for (Node* node = cursor->site; node != cursor->outside && node->caller; node = node->around()) function(node);
}

int cursor_set_memory(PyObject* self, PyObject* value, void*) {
  Cursor* cursor = Cursor::of(self);
  if (cursor->meters.set_memory(value, &cursor->site) < 0) return -1;
  if (cursor->site != nullptr) each_open(cursor, [cursor](Node* node) { cursor->meters.go_on(node); });
  return 0;
}

inline bool is_open(Cursor* cursor, Node* node) {
  bool is_found = false;
  each_open(cursor, [&](Node* open) { is_found |= open == node; });
  return is_found;
}

// Locks the mutex of a cursor's passes. The thread that has it may be waiting for the GIL, so we must
// not wait for it with the GIL held. The constructor releases the GIL while it waits: other threads
// may run Python code before it returns.
class PassLock {
 public:
  explicit PassLock(Cursor* cursor) : running_(cursor->running) {
    if (running_->mutex().try_lock()) return;
    PyThreadState* thread = PyGILState_Check() ? PyEval_SaveThread() : nullptr;
    running_->mutex().lock();
    if (thread != nullptr) PyEval_RestoreThread(thread);
  }
  PassLock(const PassLock&) = delete;
  PassLock& operator=(const PassLock&) = delete;
  ~PassLock() { running_->mutex().unlock(); }

 private:
  std::shared_ptr<Running> running_;
};

}  // namespace
