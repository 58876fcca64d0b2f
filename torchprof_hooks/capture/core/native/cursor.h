// A cursor, and the backward passes that run for it. See core/python.py.

#pragma once

#include "backward/ownership.h"
#include "log.h"
#include "meters/device_meter.h"
#include "meters/memory_meter.h"
#include "node.h"
#include "tools.h"

#include <ATen/record_function.h>
#include <pthread.h>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace torch::autograd {
// Not declared in a header that compiles in seconds.
int get_current_graph_task_id();
}  // namespace torch::autograd

namespace {

// A call whose backward is open: where it is booked.
struct OpenBackward {
  int interval;  // -1: a node that goes by its own name
  Node* node;
};

//: Instead of an interval: no node has run yet, the engine itself is at work.
constexpr int kEngine = -2;

// A run of the autograd engine, as far as it goes for one cursor.
struct Pass {
  PyObject* started;  // borrowed: in `passes` of the cursor; null if it is not there
  Node* base;
  pthread_t thread;
  uint64_t made_by;  // the number of that thread by which nodes say who made them
  int task = -1;
  bool divides, makes_graph, names_nodes;
  std::shared_ptr<CallsAround> calls;  // null if none are open around the pass
  std::shared_ptr<Intervals> current;
  uint64_t current_of = 0;  // by which thread those nodes were made
  std::vector<OpenBackward> open;
  uint64_t counts_in;  // the thread whose counter of nodes was read last
  int64_t number;      // and what it was
  std::unordered_map<uint64_t, std::vector<int64_t>> elsewhere;  // see `made_in`
  Nanoseconds ended_ns = 0;    // of the last node
  Nanoseconds entered_ns = 0;  // by then
  Node* owner() const { return open.empty() ? base : open.back().node; }
  bool has_begun() const { return open.empty() || open.front().interval != kEngine; }
};

struct Cursor;

// The passes of one cursor that run, the innermost last. Outlives the cursor: the engine
// may be about to tell of a node in another thread when the last of them ends.
struct Running {
  Cursor* cursor;  // lives while there are passes
  std::recursive_mutex mutex;
  std::deque<Pass> passes;  // a pass stays where it is while others begin inside of it
};

struct Cursor {
  PyObject_HEAD
  long thread;  // -1: has ended
  Node *site, *outside;  // borrowed: `sites` has them
  PyObject *sites, *passes, *on_pause;
  PyObject *meters, *callbacks, *functions;  // who is told of calls, or None
  Log* log;
  PyObject *memory, *device;  // a MemoryMeter and a DeviceMeter, or None
  PyObject* ties;  // see `Ownership.ties`; None where records are made in Python
  Nanoseconds entered_ns;
  char gives_time_back, owns_nodes, reads_meters, watches, by_shapes, tells_functions, sees_outer_alone;
  char divides, is_idle;  // these and the next three: see `Cursor` in Python
  Py_ssize_t graphs_left, evaluations_left;
  Nanoseconds last_evaluation_ns;
  Nanoseconds hooks_ns;  // how long some hooks took
  Py_ssize_t hooks, hooks_timed;  // all of them; and those
  int64_t owner_steps;  // what was gone through to find whose nodes are; tests ask for it
  std::vector<int64_t> intervals;
  std::unordered_map<uint64_t, Records> records;  // by the thread that made the nodes
  std::shared_ptr<Running> running;  // its mutex is that of the records, too
  PyObject* raised;                  // by Python where nothing can be raised, or null
};

PyTypeObject* cursor_type;

// Of all cursors with a pass that runs, and of those whose pass was begun in this thread.
// The latter may have ended.
using RunningList = std::vector<std::shared_ptr<Running>>;
std::mutex running_mutex;
RunningList all_running;
std::atomic<size_t> running_count{0};
// Null if no pass was ever begun here. A pointer, since each use of a list would have to
// ask first whether it was made in this thread, and nodes of autograd begin and end often.
thread_local RunningList* running_here = nullptr;

// In the child of a fork, which has one thread: passes of others go on nowhere, and what
// they had locked stays locked. (What is forgotten is not destroyed: it may be locked.)
void forget_other_threads() {
  new (&unused_events()) UnusedEvents();  // another thread may have held its lock
  RunningList& before = *new RunningList(std::move(all_running));
  new (&running_mutex) std::mutex();
  all_running.clear();
  for (const std::shared_ptr<Running>& one : before) {
    bool is_here = running_here != nullptr &&
                   std::find(running_here->begin(), running_here->end(), one) != running_here->end();
    if (!is_here) continue;
    new (&one->mutex) std::recursive_mutex();
    all_running.push_back(one);
  }
  running_count = all_running.size();
}

RunningList& make_running_here() {
  struct Kept {
    RunningList list;
    ~Kept() { running_here = nullptr; }
  };
  static thread_local Kept kept;
  running_here = &kept.list;
  return kept.list;
}

Cursor* cursor_of(PyObject* self) { return reinterpret_cast<Cursor*>(self); }
PyObject* object(Node* node) { return reinterpret_cast<PyObject*>(node); }

PyObject* cursor_new(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  Cursor* cursor = cursor_of(self);
  new (&cursor->intervals) std::vector<int64_t>();
  new (&cursor->records) std::unordered_map<uint64_t, Records>();
  new (&cursor->running) std::shared_ptr<Running>(std::make_shared<Running>());
  cursor->running->cursor = cursor;
  cursor->thread = long(PyThread_get_thread_ident());
  cursor->sites = PyList_New(0);
  cursor->passes = PyList_New(0);
  cursor->on_pause = Py_NewRef(Py_None);
  cursor->meters = Py_NewRef(Py_None);
  cursor->callbacks = Py_NewRef(Py_None);
  cursor->functions = Py_NewRef(Py_None);
  cursor->log = reinterpret_cast<Log*>(log_new(log_type, nullptr, nullptr));
  cursor->memory = Py_NewRef(Py_None);
  cursor->device = Py_NewRef(Py_None);
  cursor->ties = Py_NewRef(Py_None);
  cursor->gives_time_back = 1;
  return self;
}

int cursor_traverse(PyObject* self, visitproc visit, void* arg) {
  Cursor* cursor = cursor_of(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(cursor->sites);
  Py_VISIT(cursor->passes);
  Py_VISIT(cursor->on_pause);
  Py_VISIT(cursor->meters);
  Py_VISIT(cursor->callbacks);
  Py_VISIT(cursor->functions);
  Py_VISIT(cursor->memory);
  Py_VISIT(cursor->device);
  Py_VISIT(cursor->ties);
  Py_VISIT(cursor->raised);
  Py_VISIT(reinterpret_cast<PyObject*>(cursor->log));
  return 0;
}

int cursor_clear(PyObject* self) {
  Cursor* cursor = cursor_of(self);
  cursor->site = cursor->outside = nullptr;
  Py_CLEAR(cursor->sites);
  Py_CLEAR(cursor->passes);
  Py_CLEAR(cursor->on_pause);
  Py_CLEAR(cursor->meters);
  Py_CLEAR(cursor->callbacks);
  Py_CLEAR(cursor->functions);
  Py_CLEAR(cursor->memory);
  Py_CLEAR(cursor->device);
  Py_CLEAR(cursor->ties);
  Py_CLEAR(cursor->raised);
  PyObject* log = reinterpret_cast<PyObject*>(cursor->log);
  cursor->log = nullptr;
  Py_XDECREF(log);
  return 0;
}

void cursor_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  cursor_clear(self);
  Cursor* cursor = cursor_of(self);
  cursor->intervals.~vector();
  cursor->records.~unordered_map();
  cursor->running.~shared_ptr();
  type->tp_free(self);
  Py_DECREF(type);
}

template <Node* Cursor::*field>
PyObject* cursor_get_node(PyObject* self, void*) {
  Node* node = cursor_of(self)->*field;
  return Py_NewRef(node ? object(node) : Py_None);
}

template <Node* Cursor::*field>
int cursor_set_node(PyObject* self, PyObject* value, void*) {
  if (value == nullptr || !PyObject_TypeCheck(value, node_type)) {
    PyErr_SetString(PyExc_TypeError, "must be a Node");
    return -1;
  }
  cursor_of(self)->*field = reinterpret_cast<Node*>(value);
  return 0;
}

// What reads memory, or null; and what stamps a device's queue.
inline MemoryMeter* memory_of(Cursor* cursor) {
  PyObject* memory = cursor->memory;
  return memory == nullptr || memory == Py_None ? nullptr : meter_of(memory);
}

inline DeviceMeter* device_of(Cursor* cursor) {
  PyObject* device = cursor->device;
  return device == nullptr || device == Py_None ? nullptr : device_meter_of(device);
}

PyObject* cursor_get_ties(PyObject* self, void*) { return Py_NewRef(cursor_of(self)->ties); }

int cursor_set_ties(PyObject* self, PyObject* value, void*) {
  bool is_pair = value != nullptr && PyTuple_CheckExact(value) && PyTuple_GET_SIZE(value) == 2;
  if (!is_pair && value != Py_None) {
    PyErr_SetString(PyExc_TypeError, "must be a key and a deque");
    return -1;
  }
  PyObject* before = std::exchange(cursor_of(self)->ties, Py_NewRef(value));
  Py_XDECREF(before);
  return 0;
}

template <PyObject* Cursor::*field>
PyObject* cursor_get_meter(PyObject* self, void*) {
  return Py_NewRef(cursor_of(self)->*field);
}

template <PyObject* Cursor::*field, PyTypeObject** type>
int cursor_set_meter(PyObject* self, PyObject* value, void*) {
  if (value == nullptr || (value != Py_None && !PyObject_TypeCheck(value, *type))) {
    PyErr_SetString(PyExc_TypeError, "must be a meter of the native core");
    return -1;
  }
  PyObject* before = cursor_of(self)->*field;
  cursor_of(self)->*field = Py_NewRef(value);
  Py_XDECREF(before);
  return 0;
}

// Takes the lock of the passes without holding the interpreter's, for whoever has the
// former may wait for the latter.
class PassLock {
 public:
  explicit PassLock(Cursor* cursor) : running_(cursor->running) {
    if (!running_->mutex.try_lock()) {
      Py_BEGIN_ALLOW_THREADS
      running_->mutex.lock();
      Py_END_ALLOW_THREADS
    }
  }
  PassLock(const PassLock&) = delete;
  PassLock& operator=(const PassLock&) = delete;
  ~PassLock() { running_->mutex.unlock(); }

 private:
  std::shared_ptr<Running> running_;
};

}  // namespace
