// The fast core: where one thread is in its tree of calls, and what every call took.
//
// It does what core/python.py does, with the same names; see there for what each is for.
// Only what is hot is here: no names, no files, no reports. What is rare is left to
// methods of the Python class that derives from Cursor.
//
// Forward: torch's hook tables hold methods of Cursor. Backward: the autograd engine
// calls us before and after each node (at::RecordFunction), with the number of the node
// and the thread that made it, and without the interpreter's lock.

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/api/include/torch/version.h>

#include "native/memory.h"
#include "native/shapes.h"
#include "native/tools.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace torch::autograd {
// Not declared in a header that compiles in seconds.
int get_current_graph_task_id();
}  // namespace torch::autograd

namespace {

using Nanoseconds = int64_t;

// ---------------------------------------------------------------- clock

PyObject* other_clock = nullptr;  // stands in for the machine's, in tests

Nanoseconds machine_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

Nanoseconds other_ns() {
  PyGILState_STATE state = PyGILState_Ensure();
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyObject* found = PyObject_CallNoArgs(other_clock);
  Nanoseconds now_ns = found ? PyLong_AsLongLong(found) : 0;
  Py_XDECREF(found);
  PyErr_Clear();
  PyErr_Restore(type, value, traceback);
  PyGILState_Release(state);
  return now_ns;
}

inline Nanoseconds clock_ns() {
  return other_clock ? other_ns() : machine_ns();
}

inline int64_t next_number() {
  return int64_t(at::sequence_number::peek());
}

// Interned names of what is called in Python.
struct Names {
  PyObject *works_here, *called_site, *unwind_to, *count_if_aborted, *keep_intervals,
      *tell_of_pause, *backward_site, *site_of_node, *abort_down_to, *opened, *closing,
      *moved, *called, *returned, *look_for_devices, *find, *call, *aborted, *sites, *shaped,
      *returns_to, *keep_loose;
} names;

// ---------------------------------------------------------------- Node

struct Node;

// From a module's address to the node of its calls; open addressing. Nodes are borrowed:
// those of a cursor live as long as it does.
class Children {
 public:
  Node* find(uint64_t key) const {
    if (slots_.empty()) return nullptr;
    for (size_t place = hash(key);; place = (place + 1) & mask()) {
      if (slots_[place].key == key) return slots_[place].node;
      if (slots_[place].key == 0) return nullptr;
    }
  }
  void insert(uint64_t key, Node* node) {
    if (2 * (used_ + 1) > slots_.size()) grow();
    size_t place = hash(key);
    while (slots_[place].key != 0 && slots_[place].key != key) place = (place + 1) & mask();
    used_ += slots_[place].key == 0;
    slots_[place] = {key, node};
  }
  void erase(uint64_t key) {
    if (find(key) == nullptr) return;
    std::vector<Slot> kept = std::move(slots_);
    slots_.assign(kept.size(), Slot{});
    used_ = 0;
    for (const Slot& slot : kept)
      if (slot.key != 0 && slot.key != key) insert(slot.key, slot.node);
  }
  template <class Function>
  void each(Function function) const {
    for (const Slot& slot : slots_)
      if (slot.key != 0) function(slot.key, slot.node);
  }

 private:
  struct Slot {
    uint64_t key = 0;
    Node* node = nullptr;
  };
  size_t mask() const { return slots_.size() - 1; }
  size_t hash(uint64_t key) const { return ((key >> 4) * 0x9E3779B97F4A7C15u >> 20) & mask(); }
  void grow() {
    std::vector<Slot> kept = std::move(slots_);
    slots_.assign(kept.empty() ? 8 : 2 * kept.size(), Slot{});
    used_ = 0;
    for (const Slot& slot : kept)
      if (slot.key != 0) insert(slot.key, slot.node);
  }

  std::vector<Slot> slots_;
  size_t used_ = 0;
};

// Nodes of a backward pass inside of another one: by the code of the forward, or by the
// name of the autograd node.
struct BackwardChildren {
  std::unordered_map<int64_t, Node*> by_code;
  std::unordered_map<std::string, Node*> by_name;
};

struct Node {
  PyObject_HEAD
  PyObject* caller;  // a Node; itself if it is the outermost
  int64_t code;
  uint64_t key;
  Nanoseconds start_ns;
  int64_t low;
  int64_t arrivals, passed_over;
  Nanoseconds reading_ns;
  char is_entry, is_called, is_function, is_hidden;
  PyObject *functions, *by_shapes;  // dicts
  // Of tensors, when the open call began, and the highest level since.
  char is_metered;
  int64_t used_bytes, level_bytes, peak_bytes;
  Children children;
  BackwardChildren backward;

  Node* around() const { return reinterpret_cast<Node*>(caller); }
};

PyTypeObject* node_type;
PyTypeObject* children_type;

PyObject* node_new(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  Node* node = reinterpret_cast<Node*>(self);
  new (&node->children) Children();
  new (&node->backward) BackwardChildren();
  node->functions = PyDict_New();
  node->by_shapes = PyDict_New();
  if (node->functions == nullptr || node->by_shapes == nullptr) Py_CLEAR(self);
  return self;
}

int node_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Node* node = reinterpret_cast<Node*>(self);
  Py_VISIT(node->caller);
  Py_VISIT(node->functions);
  Py_VISIT(node->by_shapes);
  return 0;
}

int node_clear(PyObject* self) {
  Node* node = reinterpret_cast<Node*>(self);
  Py_CLEAR(node->caller);
  Py_CLEAR(node->functions);
  Py_CLEAR(node->by_shapes);
  return 0;
}

void node_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  node_clear(self);
  Node* node = reinterpret_cast<Node*>(self);
  node->children.~Children();
  node->backward.~BackwardChildren();
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* node_get_caller(PyObject* self, void*) {
  PyObject* caller = reinterpret_cast<Node*>(self)->caller;
  return Py_NewRef(caller ? caller : self);
}

int node_set_caller(PyObject* self, PyObject* value, void*) {
  if (value == nullptr || !PyObject_TypeCheck(value, node_type)) {
    PyErr_SetString(PyExc_TypeError, "caller must be a Node");
    return -1;
  }
  Node* node = reinterpret_cast<Node*>(self);
  // The outermost is its own caller: without a reference, which would be a cycle.
  PyObject* before = node->caller;
  node->caller = value == self ? nullptr : Py_NewRef(value);
  Py_XDECREF(before);
  return 0;
}

// The call that is open at another node turns out to be one at this node.
PyObject* node_continue_call_of(PyObject* self, PyObject* other) {
  if (!PyObject_TypeCheck(other, node_type)) return PyErr_Format(PyExc_TypeError, "must be a Node");
  Node *node = reinterpret_cast<Node*>(self), *before = reinterpret_cast<Node*>(other);
  node->key = before->key;
  node->start_ns = before->start_ns;
  node->low = before->low;
  node->is_metered = std::exchange(before->is_metered, 0);
  node->used_bytes = before->used_bytes;
  node->level_bytes = before->level_bytes;
  node->peak_bytes = before->peak_bytes;
  Py_RETURN_NONE;
}

// What Python sees of the children of a node: a mapping.
struct ChildrenView {
  PyObject_HEAD
  PyObject* node;
};

PyObject* node_get_children(PyObject* self, void*) {
  ChildrenView* view = PyObject_New(ChildrenView, children_type);
  if (view != nullptr) view->node = Py_NewRef(self);
  return reinterpret_cast<PyObject*>(view);
}

Children& children_of(PyObject* view) {
  PyObject* node = reinterpret_cast<ChildrenView*>(view)->node;
  return reinterpret_cast<Node*>(node)->children;
}

void children_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  Py_DECREF(reinterpret_cast<ChildrenView*>(self)->node);
  type->tp_free(self);
  Py_DECREF(type);
}

bool key_of(PyObject* number, uint64_t* key) {
  *key = PyLong_AsUnsignedLongLong(number);
  return !(*key == uint64_t(-1) && PyErr_Occurred());
}

PyObject* children_get(PyObject* self, PyObject* number) {
  uint64_t key;
  if (!key_of(number, &key)) return nullptr;
  Node* child = children_of(self).find(key);
  if (child == nullptr) {
    PyErr_SetObject(PyExc_KeyError, number);
    return nullptr;
  }
  return Py_NewRef(reinterpret_cast<PyObject*>(child));
}

int children_set(PyObject* self, PyObject* number, PyObject* value) {
  uint64_t key;
  if (!key_of(number, &key)) return -1;
  if (value == nullptr) {
    children_of(self).erase(key);
    return 0;
  }
  if (!PyObject_TypeCheck(value, node_type)) {
    PyErr_SetString(PyExc_TypeError, "a child must be a Node");
    return -1;
  }
  children_of(self).insert(key, reinterpret_cast<Node*>(value));
  return 0;
}

int children_contains(PyObject* self, PyObject* number) {
  uint64_t key;
  if (!key_of(number, &key)) return -1;
  return children_of(self).find(key) != nullptr;
}

PyObject* children_pop(PyObject* self, PyObject* args) {
  PyObject *number, *missing = Py_None;
  uint64_t key;
  if (!PyArg_ParseTuple(args, "O|O", &number, &missing) || !key_of(number, &key)) return nullptr;
  Node* child = children_of(self).find(key);
  children_of(self).erase(key);
  return Py_NewRef(child ? reinterpret_cast<PyObject*>(child) : missing);
}

PyObject* children_values(PyObject* self, PyObject*) {
  PyObject* values = PyList_New(0);
  if (values != nullptr)
    children_of(self).each([&](uint64_t, Node* node) {
      PyList_Append(values, reinterpret_cast<PyObject*>(node));
    });
  return values;
}

// ---------------------------------------------------------------- Log

using Wide = unsigned __int128;

struct Sums {
  int64_t calls = 0, total_ns = 0, min_ns = INT64_MAX, max_ns = 0;
  Wide squares = 0;
};

// What closed calls are added up in. `kept`: the calls one by one, for whoever asked.
struct Log {
  PyObject_HEAD
  PyObject* on_fold;
  std::vector<Sums> sums;
  std::vector<int64_t> first_ended, kept;
  int64_t spans;
  Nanoseconds last_end_ns;
  SpinLock lock;

  bool is_kept() const { return on_fold != nullptr && on_fold != Py_None; }

  void book(int64_t code, Nanoseconds start_ns, Nanoseconds end_ns) {
    Locked locked(lock);
    if (size_t(code) >= sums.size()) sums.resize(size_t(code) + 1);
    Sums& sum = sums[size_t(code)];
    Nanoseconds duration_ns = end_ns - start_ns;
    if (sum.calls == 0) first_ended.push_back(code);
    sum.calls += 1;
    sum.total_ns += duration_ns;
    sum.min_ns = std::min(sum.min_ns, duration_ns);
    sum.max_ns = std::max(sum.max_ns, duration_ns);
    sum.squares += Wide(duration_ns < 0 ? -duration_ns : duration_ns) *
                   Wide(duration_ns < 0 ? -duration_ns : duration_ns);
    spans += 1;
    last_end_ns = end_ns;
    if (is_kept()) kept.insert(kept.end(), {code, start_ns, end_ns});
  }
};

PyTypeObject* log_type;
//: Numbers of one call in `kept`, and how many there are when they are handed over.
constexpr size_t kFields = 3;
constexpr size_t kFoldAt = kFields * 4096;
//: Intervals outside of any module call at which a record is made of them.
constexpr size_t kLooseAt = 256;

PyObject* log_new(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = type->tp_alloc(type, 0);
  if (self != nullptr) {
    Log* log = reinterpret_cast<Log*>(self);
    new (&log->sums) std::vector<Sums>();
    new (&log->first_ended) std::vector<int64_t>();
    new (&log->kept) std::vector<int64_t>();
    new (&log->lock) SpinLock();
    log->on_fold = Py_NewRef(Py_None);
  }
  return self;
}

int log_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(reinterpret_cast<Log*>(self)->on_fold);
  return 0;
}

int log_clear(PyObject* self) {
  Py_CLEAR(reinterpret_cast<Log*>(self)->on_fold);
  return 0;
}

void log_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  log_clear(self);
  Log* log = reinterpret_cast<Log*>(self);
  log->sums.~vector();
  log->first_ended.~vector();
  log->kept.~vector();
  type->tp_free(self);
  Py_DECREF(type);
}

// Numbers as an array of numpy's.
PyObject* as_array(const std::vector<int64_t>& numbers) {
  Owned numpy(PyImport_ImportModule("numpy"));
  if (!numpy) return nullptr;
  Owned bytes(PyByteArray_FromStringAndSize(reinterpret_cast<const char*>(numbers.data()),
                                            Py_ssize_t(numbers.size() * sizeof(int64_t))));
  if (!bytes) return nullptr;
  return PyObject_CallMethod(numpy.get(), "frombuffer", "Os", bytes.get(), "int64");
}

// Hands the calls that were kept over, so many numbers each.
template <class Books>
PyObject* fold(Books* books, size_t fields) {
  std::vector<int64_t> kept;
  {
    Locked locked(books->lock);
    kept.swap(books->kept);
  }
  if (kept.empty() || !books->is_kept()) Py_RETURN_NONE;
  Owned flat(as_array(kept));
  if (!flat) return nullptr;
  Owned rows(PyObject_CallMethod(flat.get(), "reshape", "nn", Py_ssize_t(-1), Py_ssize_t(fields)));
  if (!rows) return nullptr;
  return PyObject_CallOneArg(books->on_fold, rows.get());
}

// One of the sums, of all nodes.
template <class Books, class Sum>
PyObject* sums_of(Books* books, int64_t Sum::*field) {
  std::vector<int64_t> found;
  {
    Locked locked(books->lock);
    found.reserve(books->sums.size());
    for (const Sum& sum : books->sums) found.push_back(sum.*field);
  }
  return as_array(found);
}

PyObject* log_fold(PyObject* self, PyObject*) { return fold(reinterpret_cast<Log*>(self), kFields); }

template <int64_t Sums::*field>
PyObject* log_sums(PyObject* self, void*) {
  return sums_of(reinterpret_cast<Log*>(self), field);
}

PyObject* log_squares(PyObject* self, void*) {
  Log* log = reinterpret_cast<Log*>(self);
  std::vector<Wide> found;
  {
    Locked locked(log->lock);
    for (const Sums& sum : log->sums) found.push_back(sum.squares);
  }
  PyObject* list = PyList_New(Py_ssize_t(found.size()));
  for (size_t place = 0; list != nullptr && place < found.size(); place++) {
    Owned high(PyLong_FromUnsignedLongLong(uint64_t(found[place] >> 64)));
    Owned low(PyLong_FromUnsignedLongLong(uint64_t(found[place])));
    Owned bits(PyLong_FromLong(64));
    Owned shifted(PyNumber_Lshift(high.get(), bits.get()));
    PyList_SET_ITEM(list, Py_ssize_t(place), PyNumber_Or(shifted.get(), low.get()));
  }
  return list;
}

PyObject* log_first_ended(PyObject* self, void*) {
  Log* log = reinterpret_cast<Log*>(self);
  std::vector<int64_t> found;
  {
    Locked locked(log->lock);
    found = log->first_ended;
  }
  PyObject* list = PyList_New(Py_ssize_t(found.size()));
  for (size_t place = 0; list != nullptr && place < found.size(); place++)
    PyList_SET_ITEM(list, Py_ssize_t(place), PyLong_FromLongLong(found[place]));
  return list;
}

// ---------------------------------------------------------------- TensorMeter

struct MemorySums {
  int64_t used = 0, retained = 0, peak = 0;
};

// Reads what one thread takes for tensors on the CPU, that which reads first, and adds up
// what calls took. `kept`: the calls one by one, for whoever asked.
struct TensorMeter {
  PyObject_HEAD
  PyObject* on_fold;
  memory::Reader reader;
  std::vector<MemorySums> sums;
  std::vector<int64_t> kept;
  int64_t begin_bytes;                // the level when it was read first
  int64_t high_water_bytes, blamed;  // the highest level above that, and the code of whose it was
  SpinLock lock;

  bool is_kept() const { return on_fold != nullptr && on_fold != Py_None; }

  memory::Reading read() {
    bool is_first = reader.account == nullptr;
    if (is_first) memory::Accounts::here().add_reader(&reader);
    memory::Reading now = reader.account->read(&reader);
    if (is_first) begin_bytes = now.level;
    return now;
  }
  // owner: what the thread was working for until now.
  memory::Reading read(Node* owner) {
    memory::Reading now = read();
    owner->peak_bytes = std::max(owner->peak_bytes, now.peak);
    if (now.peak - begin_bytes > high_water_bytes) {
      high_water_bytes = now.peak - begin_bytes;
      blamed = owner->code;
    }
    return now;
  }
  void opened(Node* node, const memory::Reading& now) {
    node->used_bytes = now.used;
    node->level_bytes = node->peak_bytes = now.level;
    node->is_metered = 1;
  }
  void closed(Node* node, const memory::Reading& now) {
    if (!std::exchange(node->is_metered, 0)) return;
    int64_t used = now.used - node->used_bytes, retained = now.level - node->level_bytes;
    int64_t rise = node->peak_bytes - node->level_bytes;
    if (Node* around = node->around()) around->peak_bytes = std::max(around->peak_bytes, node->peak_bytes);
    Locked locked(lock);
    if (size_t(node->code) >= sums.size()) sums.resize(size_t(node->code) + 1);
    MemorySums& sum = sums[size_t(node->code)];
    sum.used += used;
    sum.retained += retained;
    sum.peak = std::max(sum.peak, rise);
    // What is used is acquired from the system: this allocator keeps nothing.
    if (is_kept()) kept.insert(kept.end(), {node->code, used, used, retained, rise});
  }
};

PyTypeObject* meter_type;
//: Numbers of one call in `TensorMeter::kept`.
constexpr size_t kMemoryFields = 5;

TensorMeter* meter_of(PyObject* self) { return reinterpret_cast<TensorMeter*>(self); }

PyObject* meter_new(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  TensorMeter* meter = meter_of(self);
  new (&meter->reader) memory::Reader();
  new (&meter->sums) std::vector<MemorySums>();
  new (&meter->kept) std::vector<int64_t>();
  new (&meter->lock) SpinLock();
  meter->on_fold = Py_NewRef(Py_None);
  return self;
}

int meter_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(meter_of(self)->on_fold);
  return 0;
}

int meter_clear(PyObject* self) {
  Py_CLEAR(meter_of(self)->on_fold);
  return 0;
}

void meter_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  meter_clear(self);
  TensorMeter* meter = meter_of(self);
  if (meter->reader.account != nullptr) meter->reader.account->remove_reader(&meter->reader);
  meter->sums.~vector();
  meter->kept.~vector();
  type->tp_free(self);
  Py_DECREF(type);
}

// used, acquired (the same: torch keeps nothing), level, peak since the last time.
PyObject* meter_read(PyObject* self, PyObject*) {
  memory::Reading now = meter_of(self)->read();
  return Py_BuildValue("LLLL", (long long)now.used, (long long)now.used, (long long)now.level,
                       (long long)now.peak);
}

template <int64_t MemorySums::*field>
PyObject* meter_sums(PyObject* self, void*) {
  return sums_of(meter_of(self), field);
}

PyObject* meter_fold(PyObject* self, PyObject*) { return fold(meter_of(self), kMemoryFields); }

bool as_nodes(PyObject* list, std::vector<Node*>* nodes) {
  if (!PyList_Check(list)) return false;
  for (Py_ssize_t place = 0; place < PyList_GET_SIZE(list); place++) {
    PyObject* node = PyList_GET_ITEM(list, place);
    if (!PyObject_TypeCheck(node, node_type)) return false;
    nodes->push_back(reinterpret_cast<Node*>(node));
  }
  return true;
}

// A pass that Python follows has gone over to other owners: calls that ended, innermost
// first, and those that began, outermost first.
PyObject* meter_moved(PyObject* self, PyObject* args) {
  PyObject *closes, *opens;
  std::vector<Node*> closed, opened;
  if (!PyArg_ParseTuple(args, "OO", &closes, &opens)) return nullptr;
  if (!as_nodes(closes, &closed) || !as_nodes(opens, &opened) || closed.size() + opened.size() == 0)
    return PyErr_Format(PyExc_TypeError, "must be lists of nodes, not both empty");
  memory::Reading now = meter_of(self)->read(closed.empty() ? opened[0]->around() : closed[0]);
  for (Node* node : closed) meter_of(self)->closed(node, now);
  for (Node* node : opened) meter_of(self)->opened(node, now);
  Py_RETURN_NONE;
}

// Has tensors on the CPU counted from now on, or not any more. Whether they are.
PyObject* count_tensors(PyObject*, PyObject* does) {
  int is_wanted = PyObject_IsTrue(does);
  if (is_wanted < 0) return nullptr;
  return PyBool_FromLong(memory::allocator().count(is_wanted));
}

PyObject* counts_tensors(PyObject*, PyObject*) {
  return PyBool_FromLong(memory::allocator().is_counting());
}

// ---------------------------------------------------------------- Record

struct Interval {
  int64_t code, low, high;
  int parent = -1;
  int first_kid = 0, kids = 0;  // among `Intervals::kids`, by rising number
};

// Which call made which autograd node: intervals of numbers inside of each other.
struct Intervals {
  std::vector<Interval> all;
  std::vector<int> kids;  // of those without a parent first
  int roots = 0;
  int64_t low = 0, high = 0;

  // flat: code, low, high of each, in the order in which the calls ended.
  explicit Intervals(const std::vector<int64_t>& flat) {
    for (size_t place = 0; place + 2 < flat.size(); place += 3)
      all.push_back({flat[place], flat[place + 1], flat[place + 2]});
    std::vector<int> open;
    std::vector<std::vector<int>> inside(all.size() + 1);
    for (int number = int(all.size()) - 1; number >= 0; number--) {
      Interval& one = all[size_t(number)];
      while (!open.empty() && !contains(all[size_t(open.back())], one)) open.pop_back();
      one.parent = open.empty() ? -1 : open.back();
      inside[size_t(one.parent + 1)].push_back(number);
      open.push_back(number);
    }
    for (size_t place = 0; place < inside.size(); place++) {
      std::reverse(inside[place].begin(), inside[place].end());
      if (place == 0) {
        roots = int(inside[0].size());
      } else {
        all[place - 1].first_kid = int(kids.size());
        all[place - 1].kids = int(inside[place].size());
      }
      kids.insert(kids.end(), inside[place].begin(), inside[place].end());
    }
    if (!all.empty()) {
      low = INT64_MAX;
      for (const Interval& one : all) {
        low = std::min(low, one.low);
        high = std::max(high, one.high);
      }
    }
  }

  // The innermost interval with `number` in it, or -1. near: one to begin with, or -1.
  int find(int64_t number, int near) const {
    int found = near;
    while (found >= 0 && !holds(found, number)) found = all[size_t(found)].parent;
    for (;;) {
      const int* begin = kids.data() + (found < 0 ? 0 : all[size_t(found)].first_kid);
      const int* end = begin + (found < 0 ? roots : all[size_t(found)].kids);
      // The last one that begins at `number` or before. Of such as begin together (one
      // of them is empty but for the other), the outer one comes later.
      const int* after = std::upper_bound(
          begin, end, number, [&](int64_t value, int kid) { return value < all[size_t(kid)].low; });
      if (after == begin || !holds(after[-1], number)) return found;
      found = after[-1];
    }
  }

 private:
  static bool contains(const Interval& outer, const Interval& inner) {
    return outer.low <= inner.low && inner.high <= outer.high;
  }
  bool holds(int place, int64_t number) const {
    const Interval& one = all[size_t(place)];
    return one.low <= number && number < one.high;
  }
};

// Keeps the intervals of one outermost call. The graph that the call made holds it.
struct Record {
  PyObject_HEAD
  std::shared_ptr<Intervals> intervals;
};

PyTypeObject* record_type;

void record_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  reinterpret_cast<Record*>(self)->intervals.~shared_ptr();
  type->tp_free(self);
  Py_DECREF(type);
}

template <int64_t Intervals::*field>
PyObject* record_number(PyObject* self, void*) {
  return PyLong_FromLongLong(reinterpret_cast<Record*>(self)->intervals.get()->*field);
}

PyObject* record_size(PyObject* self, void*) {
  const Intervals& intervals = *reinterpret_cast<Record*>(self)->intervals;
  size_t each = sizeof(Interval) + sizeof(int);
  return PyLong_FromSize_t(400 + each * intervals.all.size());
}

// The records of the calls of one thread, by rising number. They may be gone.
struct Records {
  std::vector<std::weak_ptr<Intervals>> all;
  size_t prune_at = 128;

  void add(const std::shared_ptr<Intervals>& intervals) {
    all.push_back(intervals);
    if (all.size() < prune_at) return;
    all.erase(std::remove_if(all.begin(), all.end(), [](const auto& one) { return one.expired(); }),
              all.end());
    prune_at = 2 * std::max<size_t>(all.size(), 64);
  }

  std::shared_ptr<Intervals> find(int64_t number) const {
    for (auto one = all.rbegin(); one != all.rend(); ++one) {
      std::shared_ptr<Intervals> intervals = one->lock();
      if (intervals == nullptr || intervals->low > number) continue;
      if (intervals->high <= number) return nullptr;
      return intervals;
    }
    return nullptr;
  }
};

// ---------------------------------------------------------------- Cursor

// A call whose backward is open: where it is booked.
struct OpenBackward {
  int interval;  // -1: a node that goes by its own name
  Node* node;
};

//: Instead of an interval: no node has run yet, the engine itself is at work.
constexpr int kEngine = -2;

// A run of the autograd engine, as far as it goes for one cursor.
struct Pass {
  Node* base;
  pthread_t thread;
  uint64_t made_by;  // the number of that thread by which nodes say who made them
  int task = -1;
  bool divides, makes_graph, names_nodes;
  std::shared_ptr<Intervals> calls;  // those that are open around the pass, or null
  std::shared_ptr<Intervals> current;
  std::vector<OpenBackward> open;
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
  PyObject* tensors;  // a TensorMeter, or None
  Nanoseconds entered_ns;
  char gives_time_back, owns_nodes, reads_meters, watches, by_shapes, tells_functions;
  std::vector<int64_t> intervals;
  std::unordered_map<uint64_t, Records> records;  // by the thread that made the nodes
  std::shared_ptr<Running> running;  // its mutex is that of the records, too
  PyObject* raised;                  // by Python where nothing can be raised, or null
};

PyTypeObject* cursor_type;

// Of all cursors with a pass that runs, and of those whose pass was begun in this thread.
// The latter may have ended.
std::mutex running_mutex;
std::vector<std::shared_ptr<Running>> all_running;
std::atomic<size_t> running_count{0};
thread_local std::vector<std::shared_ptr<Running>> running_here;

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
  cursor->tensors = Py_NewRef(Py_None);
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
  Py_VISIT(cursor->tensors);
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
  Py_CLEAR(cursor->tensors);
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

// What reads the memory of tensors, or null.
TensorMeter* tensors_of(Cursor* cursor) {
  PyObject* tensors = cursor->tensors;
  return tensors == nullptr || tensors == Py_None ? nullptr : meter_of(tensors);
}

PyObject* cursor_get_tensors(PyObject* self, void*) {
  return Py_NewRef(cursor_of(self)->tensors);
}

int cursor_set_tensors(PyObject* self, PyObject* value, void*) {
  if (value == nullptr || (value != Py_None && !PyObject_TypeCheck(value, meter_type))) {
    PyErr_SetString(PyExc_TypeError, "must be a TensorMeter");
    return -1;
  }
  PyObject* before = cursor_of(self)->tensors;
  cursor_of(self)->tensors = Py_NewRef(value);
  Py_XDECREF(before);
  return 0;
}

// Whether a hook that runs now is for this cursor. -1: an exception.
int works_here(PyObject* self) {
  Cursor* cursor = cursor_of(self);
  if (long(PyThread_get_thread_ident()) == cursor->thread) return 1;
  if (cursor->passes == nullptr || PyList_GET_SIZE(cursor->passes) == 0) return 0;
  Owned answer(PyObject_CallMethodNoArgs(self, names.works_here));
  return answer ? PyObject_IsTrue(answer.get()) : -1;
}

// False: an exception.
bool is_done(PyObject* answer) {
  Py_XDECREF(answer);
  return answer != nullptr;
}

bool look_for_devices(PyObject* self) {
  Cursor* cursor = cursor_of(self);
  if (!cursor->watches) return true;
  return is_done(PyObject_CallMethodOneArg(cursor->meters, names.look_for_devices, self));
}

// Opens a call, and has the meters read. What they raise leaves it open.
// low: number of the first autograd node that is its own.
bool open_node(PyObject* self, Node* node, int64_t low) {
  Cursor* cursor = cursor_of(self);
  node->low = low;
  if (TensorMeter* tensors = tensors_of(cursor)) tensors->opened(node, tensors->read(node->around()));
  node->start_ns = clock_ns();
  cursor->site = node;  // last: whoever looks meanwhile finds nothing half open
  if (!cursor->reads_meters) return true;
  return is_done(PyObject_CallMethodOneArg(cursor->meters, names.opened, object(node)));
}

// The call at `node` has ended, and nothing is booked yet.
bool read_at_end(PyObject* self, Node* node, Nanoseconds end_ns) {
  Cursor* cursor = cursor_of(self);
  if (TensorMeter* tensors = tensors_of(cursor)) tensors->closed(node, tensors->read(node));
  if (!cursor->reads_meters) return true;
  Owned end(PyLong_FromLongLong(end_ns));
  return is_done(PyObject_CallMethodObjArgs(cursor->meters, names.closing, object(node), end.get(),
                                            nullptr));
}

bool call_back(PyObject* self, PyObject* method, Node* node, PyObject* argument) {
  PyObject* callbacks = cursor_of(self)->callbacks;
  if (callbacks == Py_None) return true;
  return is_done(PyObject_CallMethodObjArgs(callbacks, method, object(node), argument, nullptr));
}

// The autograd nodes that were made since the call at `node` began are its own.
void own_nodes(Cursor* cursor, Node* node) {
  int64_t high = next_number();
  if (high != node->low)
    cursor->intervals.insert(cursor->intervals.end(), {node->code, node->low, high});
}

// Gives interrupted callers their time back, and books an entry.
int end_entry(PyObject* self, Node* node, Nanoseconds end_ns, PyObject* outputs) {
  Cursor* cursor = cursor_of(self);
  Nanoseconds taken_ns = cursor->gives_time_back ? end_ns - node->start_ns : 0;
  cursor->entered_ns += taken_ns;
  bool is_inside_call = false;
  for (Node* around = cursor->site; around != cursor->outside && around->caller;
       around = around->around()) {
    around->start_ns += taken_ns;
    is_inside_call |= around->is_called;
  }
  cursor->log->book(node->code, node->start_ns, end_ns);
  if (cursor->intervals.empty() || is_inside_call) return 0;
  if (node->is_function && cursor->site == cursor->outside) {  // too many for a record each
    if (cursor->intervals.size() <= kFields * kLooseAt) return 0;
    return is_done(PyObject_CallMethodNoArgs(self, names.keep_loose)) ? 0 : -1;
  }
  Owned low(PyLong_FromLongLong(node->low));
  Owned done(PyObject_CallMethodObjArgs(self, names.keep_intervals, low.get(), outputs, nullptr));
  return done ? 0 : -1;
}

int tell_of_pause(PyObject* self, Node* node, PyObject* outputs, Nanoseconds end_ns) {
  if (cursor_of(self)->on_pause == Py_None) return 0;
  Owned end(PyLong_FromLongLong(end_ns));
  Owned done(PyObject_CallMethodObjArgs(self, names.tell_of_pause, object(node), outputs, end.get(),
                                        nullptr));
  return done ? 0 : -1;
}

int fold_if_due(Cursor* cursor) {
  TensorMeter* tensors = tensors_of(cursor);
  if (tensors != nullptr && tensors->kept.size() >= kFoldAt) {
    Owned done(meter_fold(cursor->tensors, nullptr));
    if (!done) return -1;
  }
  if (cursor->log->kept.size() < kFoldAt) return 0;
  Owned done(log_fold(reinterpret_cast<PyObject*>(cursor->log), nullptr));
  return done ? 0 : -1;
}

bool check_count(Py_ssize_t count, Py_ssize_t wanted) {
  if (count == wanted) return true;
  PyErr_Format(PyExc_TypeError, "%zd arguments, not %zd", wanted, count);
  return false;
}

PyObject* forward_pre(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (!check_count(count, 2)) return nullptr;
  Cursor* cursor = cursor_of(self);
  if (long(PyThread_get_thread_ident()) != cursor->thread) {
    int is_here = works_here(self);
    if (is_here < 0) return nullptr;
    if (!is_here) Py_RETURN_NONE;
  }
  Node* node = cursor->site->children.find(reinterpret_cast<uint64_t>(args[0]));
  if (node == nullptr) {
    Owned found(PyObject_CallMethodOneArg(self, names.called_site, args[0]));
    if (!found) return nullptr;
    if (found.get() == Py_None) Py_RETURN_NONE;
    node = reinterpret_cast<Node*>(found.get());
  }
  if (node->is_entry && !look_for_devices(self)) return nullptr;
  if (!open_node(self, node, next_number()) || !call_back(self, names.called, node, args[1])) return nullptr;
  Py_RETURN_NONE;
}

PyObject* forward_post(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (!check_count(count, 3)) return nullptr;
  Cursor* cursor = cursor_of(self);
  if (long(PyThread_get_thread_ident()) != cursor->thread) {
    int is_here = works_here(self);
    if (is_here < 0) return nullptr;
    if (!is_here) Py_RETURN_NONE;
  }
  Nanoseconds end_ns = clock_ns();
  Node* node = cursor->site;
  if (node->key != reinterpret_cast<uint64_t>(args[0])) {
    Owned found(PyObject_CallMethodOneArg(self, names.unwind_to, args[0]));
    if (!found) return nullptr;
    node = reinterpret_cast<Node*>(found.get());
    if (node == cursor->outside) Py_RETURN_NONE;
  }
  if (!read_at_end(self, node, end_ns)) return nullptr;
  cursor->site = node->around();
  if (cursor->owns_nodes) own_nodes(cursor, node);
  if (args[2] == Py_None) {
    Owned done(PyObject_CallMethodNoArgs(self, names.count_if_aborted));
    if (!done) return nullptr;
  }
  if (node->is_entry && cursor->owns_nodes) {
    if (end_entry(self, node, end_ns, args[2]) < 0) return nullptr;
    if (tell_of_pause(self, node, args[2], end_ns) < 0) return nullptr;
  } else {
    cursor->log->book(node->code, node->start_ns, end_ns);
  }
  if (fold_if_due(cursor) < 0 || !call_back(self, names.returned, node, args[2])) return nullptr;
  Py_RETURN_NONE;
}

// All cursors that are shown every module, in the order in which they came: a tuple, or
// null. One pair of hooks serves them, since torch's loop over hooks is the dearer part.
PyObject* shown = nullptr;

PyObject* each_shown(PyObject* (*hook)(PyObject*, PyObject* const*, Py_ssize_t), PyObject* const* args,
                     Py_ssize_t count) {
  if (shown == nullptr) Py_RETURN_NONE;
  Owned cursors(Py_NewRef(shown));
  long thread = long(PyThread_get_thread_ident());
  for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(cursors.get()); place++) {
    PyObject* self = PyTuple_GET_ITEM(cursors.get(), place);
    Cursor* cursor = cursor_of(self);
    if (cursor->thread != thread && PyList_GET_SIZE(cursor->passes) == 0) continue;
    if (!is_done(hook(self, args, count))) return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* shown_pre(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return each_shown(forward_pre, args, count);
}

PyObject* shown_post(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return each_shown(forward_post, args, count);
}

PyObject* show_modules_to(PyObject*, PyObject* cursors) {
  if (!PyTuple_Check(cursors)) {
    PyErr_SetString(PyExc_TypeError, "cursors must be a tuple");
    return nullptr;
  }
  for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(cursors); place++)
    if (!PyObject_TypeCheck(PyTuple_GET_ITEM(cursors, place), cursor_type)) {
      PyErr_SetString(PyExc_TypeError, "must be a Cursor");
      return nullptr;
    }
  PyObject* before = shown;
  shown = PyTuple_GET_SIZE(cursors) ? Py_NewRef(cursors) : nullptr;
  Py_XDECREF(before);
  Py_RETURN_NONE;
}

bool is_node(PyObject* value) {
  if (PyObject_TypeCheck(value, node_type)) return true;
  PyErr_SetString(PyExc_TypeError, "must be a Node");
  return false;
}

PyObject* open_entry(PyObject* self, PyObject* node) {
  if (!is_node(node) || !look_for_devices(self)) return nullptr;
  if (!open_node(self, reinterpret_cast<Node*>(node), next_number())) {
    cursor_of(self)->site = reinterpret_cast<Node*>(node)->around();  // nobody closes it
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* close_entry(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count < 1 || count > 2 || !is_node(args[0])) return nullptr;
  PyObject* outputs = count > 1 ? args[1] : Py_None;
  Node* node = reinterpret_cast<Node*>(args[0]);
  Nanoseconds end_ns = clock_ns();
  if (!read_at_end(self, node, end_ns)) return nullptr;
  cursor_of(self)->site = node->around();
  if (end_entry(self, node, end_ns, outputs) < 0) return nullptr;
  if (tell_of_pause(self, node, outputs, end_ns) < 0) return nullptr;
  Py_RETURN_NONE;
}

PyObject* py_end_entry(PyObject* self, PyObject* args) {
  PyObject *node, *outputs;
  long long end_ns;
  if (!PyArg_ParseTuple(args, "OLO", &node, &end_ns, &outputs) || !is_node(node)) return nullptr;
  if (end_entry(self, reinterpret_cast<Node*>(node), end_ns, outputs) < 0) return nullptr;
  Py_RETURN_NONE;
}

bool three_numbers(PyObject* tuple, long long* numbers) {
  return PyArg_ParseTuple(tuple, "LLL", numbers, numbers + 1, numbers + 2);
}

PyObject* append(PyObject* self, PyObject* call) {
  long long numbers[3];
  if (!three_numbers(call, numbers)) return nullptr;
  cursor_of(self)->log->book(numbers[0], numbers[1], numbers[2]);
  if (fold_if_due(cursor_of(self)) < 0) return nullptr;
  Py_RETURN_NONE;
}

PyObject* py_is_booked(PyObject*, PyObject*) {
  Py_RETURN_FALSE;  // nothing comes in between here
}

PyObject* last_end_ns(PyObject* self, PyObject*) {
  Log* log = cursor_of(self)->log;
  return PyLong_FromLongLong(log->spans ? log->last_end_ns : clock_ns());
}

PyObject* last_booked_ns(PyObject* self, PyObject*) {
  return PyLong_FromLongLong(cursor_of(self)->log->last_end_ns);
}

PyObject* fold_log(PyObject* self, PyObject*) {
  if (fold_if_due(cursor_of(self)) < 0) return nullptr;
  Py_RETURN_NONE;
}

// Intervals

PyObject* as_list(const int64_t* begin, const int64_t* end) {
  PyObject* list = PyList_New(end - begin);
  for (Py_ssize_t place = 0; list != nullptr && place < end - begin; place++)
    PyList_SET_ITEM(list, place, PyLong_FromLongLong(begin[place]));
  return list;
}

bool from_list(PyObject* list, std::vector<int64_t>* numbers) {
  Owned fast(PySequence_Fast(list, "intervals must be a list"));
  if (!fast) return false;
  for (Py_ssize_t place = 0; place < PySequence_Fast_GET_SIZE(fast.get()); place++)
    numbers->push_back(PyLong_AsLongLong(PySequence_Fast_GET_ITEM(fast.get(), place)));
  return !PyErr_Occurred();
}

PyObject* own(PyObject* self, PyObject* interval) {
  long long numbers[3];
  if (!three_numbers(interval, numbers)) return nullptr;
  std::vector<int64_t>& intervals = cursor_of(self)->intervals;
  intervals.insert(intervals.end(), numbers, numbers + 3);
  Py_RETURN_NONE;
}

PyObject* take_intervals(PyObject* self, PyObject* args) {
  long long low;
  if (!PyArg_ParseTuple(args, "L", &low)) return nullptr;
  std::vector<int64_t>& intervals = cursor_of(self)->intervals;
  size_t first = intervals.size();
  while (first > 0 && intervals[first - 2] >= low) first -= kFields;
  PyObject* list = as_list(intervals.data() + first, intervals.data() + intervals.size());
  if (list != nullptr) intervals.resize(first);
  return list;
}

PyObject* get_intervals(PyObject* self, void*) {
  const std::vector<int64_t>& intervals = cursor_of(self)->intervals;
  return as_list(intervals.data(), intervals.data() + intervals.size());
}

PyObject* no_entries(PyObject*, void*) {
  return PyTuple_New(0);  // they are added up at once
}

PyObject* interval_count(PyObject* self, void*) {
  return PyLong_FromSize_t(cursor_of(self)->intervals.size() / kFields);
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

PyObject* add_record(PyObject* self, PyObject* args) {
  PyObject* flat;
  long long low;
  std::vector<int64_t> numbers;
  if (!PyArg_ParseTuple(args, "OL", &flat, &low) || !from_list(flat, &numbers)) return nullptr;
  PyObject* made = record_type->tp_alloc(record_type, 0);
  if (made == nullptr) return nullptr;
  Record* record = reinterpret_cast<Record*>(made);
  new (&record->intervals) std::shared_ptr<Intervals>(std::make_shared<Intervals>(numbers));
  record->intervals->low = std::min<int64_t>(record->intervals->low, low);
  Cursor* cursor = cursor_of(self);
  PassLock locked(cursor);
  cursor->records[at::RecordFunction::currentThreadId()].add(record->intervals);
  return made;
}

// ---------------------------------------------------------------- functions

// The node of calls with these inputs, next to `node`: a new reference.
PyObject* shaped(PyObject* self, Node* node, PyObject* function, PyObject* args, PyObject* kwargs) {
  Cursor* cursor = cursor_of(self);
  if (!cursor->by_shapes || node->is_hidden) return Py_NewRef(object(node));
  Owned shapes(shapes::usual(args, kwargs));
  if (shapes) {
    PyObject* known = PyDict_GetItemWithError(node->by_shapes, shapes.get());
    if (known != nullptr) return Py_NewRef(known);
    if (PyErr_Occurred()) PyErr_Clear();  // sizes that are symbols
  }
  Owned keywords(kwargs ? Py_NewRef(kwargs) : PyDict_New());
  Owned sites(PyObject_GetAttr(cursor->functions, names.sites));
  if (!keywords || !sites) return nullptr;
  return PyObject_CallMethodObjArgs(sites.get(), names.shaped, object(node), function, args,
                                    keywords.get(), nullptr);
}

// Closes the call of a function that has returned. False: an exception.
bool function_returned(PyObject* self, Node* node, Nanoseconds end_ns, PyObject* outputs) {
  Cursor* cursor = cursor_of(self);
  if (cursor->site != node) {
    Owned end(PyLong_FromLongLong(end_ns));
    Owned is_open(
        PyObject_CallMethodObjArgs(self, names.returns_to, object(node), end.get(), nullptr));
    if (!is_open) return false;
    if (is_open.get() != Py_True) return true;  // measuring was stopped in the middle of it
  }
  if (!read_at_end(self, node, end_ns)) return false;
  cursor->site = node->around();
  own_nodes(cursor, node);
  if (!node->is_entry)
    cursor->log->book(node->code, node->start_ns, end_ns);
  else if (end_entry(self, node, end_ns, outputs) < 0)
    return false;
  return fold_if_due(cursor) >= 0;
}

// The exception that is set is leaving the call at `node`. It stays set.
void function_raised(PyObject* self, Node* node) {
  PyObject *type, *error, *traceback;
  PyErr_Fetch(&type, &error, &traceback);
  PyErr_NormalizeException(&type, &error, &traceback);
  if (is_done(PyObject_CallMethodObjArgs(cursor_of(self)->functions, names.aborted, self,
                                         object(node), error, nullptr))) {
    PyErr_Restore(type, error, traceback);
    return;
  }
  Py_XDECREF(type);
  Py_XDECREF(error);
  Py_XDECREF(traceback);
}

// Calls a function at a node that was found for it, and measures that.
// kwargs: or null. low: number of the first autograd node of the call, or -1.
PyObject* measure(PyObject* self, Node* found, PyObject* function, PyObject* args, PyObject* kwargs,
                  int64_t low) {
  Owned place(shaped(self, found, function, args, kwargs));
  if (!place) return nullptr;
  Node* node = reinterpret_cast<Node*>(place.get());
  if (node->is_entry && !look_for_devices(self)) return nullptr;
  PyObject* outputs = nullptr;
  if (open_node(self, node, low < 0 ? next_number() : low))
    outputs = PyObject_Call(function, args, kwargs);
  if (outputs != nullptr && function_returned(self, node, clock_ns(), outputs)) return outputs;
  function_raised(self, node);
  Py_XDECREF(outputs);
  return nullptr;
}

// What a function is called with, as Python's calls have it.
struct Inputs {
  Inputs(PyObject* args, PyObject* kwargs) : args(PySequence_Tuple(args)), kwargs(as_dict(kwargs)) {}
  explicit operator bool() const { return args && !PyErr_Occurred(); }

  Owned args, kwargs;  // null for no keywords

 private:
  static PyObject* as_dict(PyObject* given) {
    if (given == Py_None || (PyDict_Check(given) && PyDict_GET_SIZE(given) == 0)) return nullptr;
    if (PyDict_Check(given)) return Py_NewRef(given);
    PyObject* dict = PyDict_New();
    if (dict != nullptr) PyDict_Update(dict, given);
    return dict;
  }
};

// Calls a function that a mode was shown, and measures it, if it is to be followed.
PyObject* call_function(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (!check_count(count, 3)) return nullptr;
  PyObject* function = args[0];
  Inputs inputs(args[1], args[2]);
  if (!inputs) return nullptr;
  Cursor* cursor = cursor_of(self);
  Node* caller = cursor->site;
  PyObject* known = PyDict_GetItemWithError(caller->functions, function);
  if (known == nullptr && PyErr_Occurred()) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) return nullptr;
    PyErr_Clear();  // it cannot be hashed
  }
  Owned site(known ? Py_NewRef(known)
                   : PyObject_CallMethodObjArgs(cursor->functions, names.find, self, function, nullptr));
  if (!site) return nullptr;
  if (site.get() == Py_None) {
    caller->passed_over += 1;
    return PyObject_Call(function, inputs.args.get(), inputs.kwargs.get());
  }
  if (!is_node(site.get())) return nullptr;
  Node* node = reinterpret_cast<Node*>(site.get());
  if (!cursor->tells_functions)
    return measure(self, node, function, inputs.args.get(), inputs.kwargs.get(), -1);
  Owned keywords(inputs.kwargs ? Py_NewRef(inputs.kwargs.get()) : PyDict_New());
  if (!keywords) return nullptr;
  return PyObject_CallMethodObjArgs(cursor->functions, names.call, self, site.get(), function,
                                    inputs.args.get(), keywords.get(), nullptr);
}

PyObject* measured(PyObject* self, PyObject* args) {
  PyObject *site, *function, *tuple, *dict;
  long long low = -1;
  if (!PyArg_ParseTuple(args, "OOOO|L", &site, &function, &tuple, &dict, &low) || !is_node(site))
    return nullptr;
  Inputs inputs(tuple, dict);
  if (!inputs) return nullptr;
  Node* node = reinterpret_cast<Node*>(site);
  return measure(self, node, function, inputs.args.get(), inputs.kwargs.get(), low);
}

PyObject* py_function_returned(PyObject* self, PyObject* args) {
  PyObject *node, *outputs;
  long long end_ns;
  if (!PyArg_ParseTuple(args, "OLO", &node, &end_ns, &outputs) || !is_node(node)) return nullptr;
  if (!function_returned(self, reinterpret_cast<Node*>(node), end_ns, outputs)) return nullptr;
  Py_RETURN_NONE;
}

// ---------------------------------------------------------------- backward

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
  int64_t number = pass.makes_graph ? next_number() : 0;
  while (pass.open.size() > kept) {
    Node* node = pass.open.back().node;
    pass.open.pop_back();
    cursor->log->book(node->code, node->start_ns, now_ns);
    if (tensors != nullptr) tensors->closed(node, bytes);
    if (pass.makes_graph && number != node->low)
      cursor->intervals.insert(cursor->intervals.end(), {node->code, node->low, number});
    if (cursor->reads_meters) closed.push_back(node);
  }
  for (const OpenBackward& one : opens) {
    one.node->start_ns = now_ns;
    if (tensors != nullptr) tensors->opened(one.node, bytes);
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

// Passes that others start than Python: `unseen` is told of each, once.
PyObject* unseen = nullptr;
thread_local int seen_passes = 0;     // that run in this thread, and came from Python
thread_local int last_told_task = -1;

// Whether anybody was told just now.
bool tell_of_unseen_pass() {
  if (unseen == nullptr || seen_passes != 0) return false;
  int task = torch::autograd::get_current_graph_task_id();
  if (task == last_told_task) return false;
  last_told_task = task;
  PyGILState_STATE state = PyGILState_Ensure();
  if (unseen != nullptr) {
    Owned called(Py_NewRef(unseen));
    Owned done(PyObject_CallNoArgs(called.get()));
    // No exception can pass here: an interrupt comes again.
    if (!done && PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) {
      PyErr_Clear();
      PyErr_SetInterrupt();
    } else if (!done) {
      PyErr_WriteUnraisable(called.get());
    }
  }
  PyGILState_Release(state);
  return true;
}

std::unique_ptr<at::ObserverContext> at_node_start(const at::RecordFunction& node) {
  auto begins = [&](Cursor* cursor, Pass& pass) {
    if (pass.divides) node_begins(cursor, pass, node);
  };
  if (!each_running(node, begins) && tell_of_unseen_pass()) each_running(node, begins);
  return nullptr;
}

void at_node_end(const at::RecordFunction& node, at::ObserverContext*) {
  each_running(node, [&](Cursor* cursor, Pass& pass) {
    pass.ended_ns = clock_ns();
    pass.entered_ns = cursor->entered_ns;
  });
}

at::CallbackHandle node_callback = 0;

// While passes run, or may be begun by others than Python. `running_mutex` is held.
void watch_nodes() {
  bool is_wanted = unseen != nullptr || !all_running.empty();
  if (is_wanted && node_callback == 0) {
    node_callback = at::addGlobalCallback(at::RecordFunctionCallback(at_node_start, at_node_end)
                                              .scopes({at::RecordScope::BACKWARD_FUNCTION}));
  } else if (!is_wanted && node_callback != 0) {
    at::removeCallback(node_callback);
    node_callback = 0;
  }
}

PyObject* on_unseen_pass(PyObject*, PyObject* callback) {
  std::lock_guard<std::mutex> locked(running_mutex);
  PyObject* before = unseen;
  unseen = callback == Py_None ? nullptr : Py_NewRef(callback);
  watch_nodes();
  Py_XDECREF(before);
  Py_RETURN_NONE;
}

// Returns what `seen_pass_ends` is to be given.
PyObject* seen_pass_begins(PyObject*, PyObject*) {
  bool is_outermost = torch::autograd::get_current_graph_task_id() == -1;
  int before = is_outermost ? 0 : seen_passes;  // an interrupt may have kept one from ending
  seen_passes = before + 1;
  return PyLong_FromLong(before);
}

PyObject* seen_pass_ends(PyObject*, PyObject* before) {
  seen_passes = int(PyLong_AsLong(before));
  if (PyErr_Occurred()) return nullptr;
  Py_RETURN_NONE;
}

// Last of all that is done before a pass, which begins here: none of that is its time.
void engine_begins(Cursor* cursor, Pass& pass, Node* engine) {
  pass.open.push_back({kEngine, engine});
  engine->low = next_number();
  pass.base->start_ns = engine->start_ns = clock_ns();
  cursor->site = engine;
}

// A node is about to run of which the engine has not told yet: it has begun by now.
PyObject* engine_ends(PyObject* self, PyObject*) {
  Cursor* cursor = cursor_of(self);
  PassLock locked(cursor);
  if (cursor->running->passes.empty() || cursor->running->passes.back().has_begun()) Py_RETURN_NONE;
  move(cursor, cursor->running->passes.back(), 0, {}, clock_ns());
  if (raise_again(cursor)) return nullptr;
  Py_RETURN_NONE;
}

void forget_ended_here() {
  auto is_over = [](const std::shared_ptr<Running>& one) {
    // Whoever has it may wait for the interpreter's lock, which is ours.
    std::unique_lock<std::recursive_mutex> locked(one->mutex, std::try_to_lock);
    return locked.owns_lock() && one->passes.empty();
  };
  running_here.erase(std::remove_if(running_here.begin(), running_here.end(), is_over),
                     running_here.end());
}

PyObject* enter_pass(PyObject* self, PyObject* args, PyObject* keywords) {
  static const char* parameters[] = {"base",        "divides", "makes_graph",
                                     "names_nodes", "calls",   "engine",
                                     "started",     nullptr};
  PyObject *base, *calls = Py_None, *engine = Py_None, *started = Py_None;
  int divides = 1, makes_graph = 0, names_nodes = 0;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|pppOOO", const_cast<char**>(parameters), &base,
                                   &divides, &makes_graph, &names_nodes, &calls, &engine, &started) ||
      !is_node(base) || (engine != Py_None && !is_node(engine)))
    return nullptr;
  Cursor* cursor = cursor_of(self);
  Pass pass;
  pass.base = reinterpret_cast<Node*>(base);
  pass.thread = pthread_self();
  pass.made_by = at::RecordFunction::currentThreadId();
  pass.divides = divides;
  pass.makes_graph = makes_graph;
  pass.names_nodes = names_nodes;
  if (calls != Py_None) {
    std::vector<int64_t> numbers;
    if (!from_list(calls, &numbers)) return nullptr;
    pass.calls = std::make_shared<Intervals>(numbers);
  }
  PassLock locked(cursor);
  // Here, for an interrupt that came in between would leave a pass that nobody ends.
  if (started != Py_None && PyList_Append(cursor->passes, started) < 0) return nullptr;
  Py_INCREF(self);  // for as long as it runs
  cursor->running->passes.push_back(std::move(pass));
  if (cursor->running->passes.size() == 1) {
    forget_ended_here();
    running_here.push_back(cursor->running);
    std::lock_guard<std::mutex> registering(running_mutex);
    all_running.push_back(cursor->running);
    running_count = all_running.size();
    watch_nodes();
  }
  if (engine != Py_None) engine_begins(cursor, cursor->running->passes.back(), reinterpret_cast<Node*>(engine));
  Py_RETURN_NONE;
}

void forget_pass(Cursor* cursor) {
  cursor->running->passes.pop_back();
  if (!cursor->running->passes.empty()) return;
  forget_ended_here();
  std::lock_guard<std::mutex> registering(running_mutex);
  all_running.erase(std::remove(all_running.begin(), all_running.end(), cursor->running),
                    all_running.end());
  running_count = all_running.size();
  watch_nodes();
}

// Ends the pass that began last: closes what is open of it when its last node ended, and
// returns that moment; None if no node has run, or if it was over.
PyObject* leave_pass(PyObject* self, PyObject* args) {
  int failed = 0;
  if (!PyArg_ParseTuple(args, "|p", &failed)) return nullptr;
  Cursor* cursor = cursor_of(self);
  PassLock locked(cursor);
  if (cursor->running->passes.empty()) Py_RETURN_NONE;
  Pass& pass = cursor->running->passes.back();
  Nanoseconds end_ns = 0;
  if (pass.ended_ns != 0)
    end_ns = failed ? clock_ns() : pass.ended_ns + cursor->entered_ns - pass.entered_ns;
  if (!pass.open.empty()) move(cursor, pass, 0, {}, end_ns ? end_ns : clock_ns());
  forget_pass(cursor);
  Py_DECREF(self);  // the caller has another one
  if (raise_again(cursor)) return nullptr;
  if (end_ns == 0) Py_RETURN_NONE;
  return PyLong_FromLongLong(end_ns);
}

// The pass that began last is dead, and what was open of it is closed.
PyObject* drop_pass(PyObject* self, PyObject*) {
  Cursor* cursor = cursor_of(self);
  PassLock locked(cursor);
  if (cursor->running->passes.empty()) Py_RETURN_NONE;
  forget_pass(cursor);
  Py_DECREF(self);
  Py_RETURN_NONE;
}

PyObject* open_backward(PyObject* self, void*) {
  PassLock locked(cursor_of(self));
  const std::deque<Pass>& running = cursor_of(self)->running->passes;
  bool are_calls = !running.empty() && running.back().has_begun();
  return PyLong_FromSize_t(are_calls ? running.back().open.size() : 0);
}

PyObject* pass_owner(PyObject* self, void*) {
  PassLock locked(cursor_of(self));
  const std::deque<Pass>& running = cursor_of(self)->running->passes;
  if (running.empty()) Py_RETURN_NONE;
  return Py_NewRef(object(running.back().owner()));
}

PyObject* runs_task(PyObject* self, PyObject* number) {
  long task = PyLong_AsLong(number);
  if (task == -1 && PyErr_Occurred()) return nullptr;
  PassLock locked(cursor_of(self));
  for (const Pass& pass : cursor_of(self)->running->passes)
    if (pass.task == task && task != -1) Py_RETURN_TRUE;
  Py_RETURN_FALSE;
}

// ---------------------------------------------------------------- module

PyObject* set_clock(PyObject*, PyObject* clock) {
  PyObject* before = other_clock;
  other_clock = clock == Py_None ? nullptr : Py_NewRef(clock);
  Py_XDECREF(before);
  Py_RETURN_NONE;
}

#define FASTCALL(function) reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function))

PyMemberDef node_members[] = {
    {"code", T_LONGLONG, offsetof(Node, code), 0, nullptr},
    {"key", T_ULONGLONG, offsetof(Node, key), 0, nullptr},
    {"start_ns", T_LONGLONG, offsetof(Node, start_ns), 0, nullptr},
    {"low", T_LONGLONG, offsetof(Node, low), 0, nullptr},
    {"arrivals", T_LONGLONG, offsetof(Node, arrivals), 0, nullptr},
    {"passed_over", T_LONGLONG, offsetof(Node, passed_over), 0, nullptr},
    {"reading_ns", T_LONGLONG, offsetof(Node, reading_ns), 0, nullptr},
    {"is_entry", T_BOOL, offsetof(Node, is_entry), 0, nullptr},
    {"is_called", T_BOOL, offsetof(Node, is_called), 0, nullptr},
    {"is_function", T_BOOL, offsetof(Node, is_function), 0, nullptr},
    {"is_hidden", T_BOOL, offsetof(Node, is_hidden), 0, nullptr},
    {"functions", T_OBJECT, offsetof(Node, functions), READONLY, nullptr},
    {"by_shapes", T_OBJECT, offsetof(Node, by_shapes), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyGetSetDef node_getset[] = {{"caller", node_get_caller, node_set_caller, nullptr, nullptr},
                             {"children", node_get_children, nullptr, nullptr, nullptr},
                             {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMethodDef node_methods[] = {{"continue_call_of", node_continue_call_of, METH_O, nullptr},
                              {nullptr, nullptr, 0, nullptr}};

PyMethodDef children_methods[] = {{"pop", children_pop, METH_VARARGS, nullptr},
                                  {"values", children_values, METH_NOARGS, nullptr},
                                  {nullptr, nullptr, 0, nullptr}};

PyMemberDef log_members[] = {{"on_fold", T_OBJECT, offsetof(Log, on_fold), 0, nullptr},
                             {"spans", T_LONGLONG, offsetof(Log, spans), READONLY, nullptr},
                             {nullptr, 0, 0, 0, nullptr}};

PyGetSetDef log_getset[] = {{"calls", log_sums<&Sums::calls>, nullptr, nullptr, nullptr},
                            {"total_ns", log_sums<&Sums::total_ns>, nullptr, nullptr, nullptr},
                            {"min_ns", log_sums<&Sums::min_ns>, nullptr, nullptr, nullptr},
                            {"max_ns", log_sums<&Sums::max_ns>, nullptr, nullptr, nullptr},
                            {"squares", log_squares, nullptr, nullptr, nullptr},
                            {"first_ended", log_first_ended, nullptr, nullptr, nullptr},
                            {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMethodDef log_methods[] = {{"fold", log_fold, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};

PyMemberDef meter_members[] = {
    {"on_fold", T_OBJECT, offsetof(TensorMeter, on_fold), 0, nullptr},
    {"high_water_bytes", T_LONGLONG, offsetof(TensorMeter, high_water_bytes), READONLY, nullptr},
    {"blamed", T_LONGLONG, offsetof(TensorMeter, blamed), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyGetSetDef meter_getset[] = {{"used", meter_sums<&MemorySums::used>, nullptr, nullptr, nullptr},
                              {"acquired", meter_sums<&MemorySums::used>, nullptr, nullptr, nullptr},
                              {"retained", meter_sums<&MemorySums::retained>, nullptr, nullptr, nullptr},
                              {"peak", meter_sums<&MemorySums::peak>, nullptr, nullptr, nullptr},
                              {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMethodDef meter_methods[] = {{"read", meter_read, METH_NOARGS, nullptr},
                               {"fold", meter_fold, METH_NOARGS, nullptr},
                               {"moved", meter_moved, METH_VARARGS, nullptr},
                               {nullptr, nullptr, 0, nullptr}};

PyGetSetDef record_getset[] = {
    {"low", record_number<&Intervals::low>, nullptr, nullptr, nullptr},
    {"high", record_number<&Intervals::high>, nullptr, nullptr, nullptr},
    {"size_bytes", record_size, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef cursor_members[] = {
    {"thread", T_LONG, offsetof(Cursor, thread), 0, nullptr},
    {"sites", T_OBJECT, offsetof(Cursor, sites), 0, nullptr},
    {"passes", T_OBJECT, offsetof(Cursor, passes), 0, nullptr},
    {"on_pause", T_OBJECT, offsetof(Cursor, on_pause), 0, nullptr},
    {"meters", T_OBJECT, offsetof(Cursor, meters), 0, nullptr},
    {"callbacks", T_OBJECT, offsetof(Cursor, callbacks), 0, nullptr},
    {"functions", T_OBJECT, offsetof(Cursor, functions), 0, nullptr},
    {"log", T_OBJECT, offsetof(Cursor, log), READONLY, nullptr},
    {"entered_ns", T_LONGLONG, offsetof(Cursor, entered_ns), 0, nullptr},
    {"gives_time_back", T_BOOL, offsetof(Cursor, gives_time_back), 0, nullptr},
    {"owns_nodes", T_BOOL, offsetof(Cursor, owns_nodes), 0, nullptr},
    {"reads_meters", T_BOOL, offsetof(Cursor, reads_meters), 0, nullptr},
    {"watches", T_BOOL, offsetof(Cursor, watches), 0, nullptr},
    {"by_shapes", T_BOOL, offsetof(Cursor, by_shapes), 0, nullptr},
    {"tells_functions", T_BOOL, offsetof(Cursor, tells_functions), 0, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyGetSetDef cursor_getset[] = {
    {"site", cursor_get_node<&Cursor::site>, cursor_set_node<&Cursor::site>, nullptr, nullptr},
    {"outside", cursor_get_node<&Cursor::outside>, cursor_set_node<&Cursor::outside>, nullptr, nullptr},
    {"tensors", cursor_get_tensors, cursor_set_tensors, nullptr, nullptr},
    {"intervals", get_intervals, nullptr, nullptr, nullptr},
    {"entries", no_entries, nullptr, nullptr, nullptr},
    {"interval_count", interval_count, nullptr, nullptr, nullptr},
    {"open_backward", open_backward, nullptr, nullptr, nullptr},
    {"pass_owner", pass_owner, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMethodDef cursor_methods[] = {
    {"forward_pre", FASTCALL(forward_pre), METH_FASTCALL, nullptr},
    {"forward_post", FASTCALL(forward_post), METH_FASTCALL, nullptr},
    {"open_entry", open_entry, METH_O, nullptr},
    {"close_entry", FASTCALL(close_entry), METH_FASTCALL, nullptr},
    {"end_entry", py_end_entry, METH_VARARGS, nullptr},
    {"call_function", FASTCALL(call_function), METH_FASTCALL, nullptr},
    {"measured", measured, METH_VARARGS, nullptr},
    {"function_returned", py_function_returned, METH_VARARGS, nullptr},
    {"book", append, METH_O, nullptr},
    {"is_booked", py_is_booked, METH_O, nullptr},
    {"last_end_ns", last_end_ns, METH_NOARGS, nullptr},
    {"last_booked_ns", last_booked_ns, METH_NOARGS, nullptr},
    {"fold_if_due", fold_log, METH_NOARGS, nullptr},
    {"own", own, METH_O, nullptr},
    {"take_intervals", take_intervals, METH_VARARGS, nullptr},
    {"add_record", add_record, METH_VARARGS, nullptr},
    {"enter_pass", FASTCALL(enter_pass), METH_VARARGS | METH_KEYWORDS, nullptr},
    {"engine_ends", engine_ends, METH_NOARGS, nullptr},
    {"leave_pass", leave_pass, METH_VARARGS, nullptr},
    {"drop_pass", drop_pass, METH_NOARGS, nullptr},
    {"runs_task", runs_task, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr}};

#define SLOT(slot, value) {slot, reinterpret_cast<void*>(value)}

PyType_Slot node_slots[] = {SLOT(Py_tp_new, node_new),
                            SLOT(Py_tp_dealloc, node_dealloc),
                            SLOT(Py_tp_traverse, node_traverse),
                            SLOT(Py_tp_clear, node_clear),
                            SLOT(Py_tp_members, node_members),
                            SLOT(Py_tp_methods, node_methods),
                            SLOT(Py_tp_getset, node_getset),
                            {0, nullptr}};
PyType_Slot children_slots[] = {SLOT(Py_tp_dealloc, children_dealloc),
                                SLOT(Py_tp_methods, children_methods),
                                SLOT(Py_mp_subscript, children_get),
                                SLOT(Py_mp_ass_subscript, children_set),
                                SLOT(Py_sq_contains, children_contains),
                                {0, nullptr}};
PyType_Slot log_slots[] = {SLOT(Py_tp_new, log_new),
                           SLOT(Py_tp_dealloc, log_dealloc),
                           SLOT(Py_tp_traverse, log_traverse),
                           SLOT(Py_tp_clear, log_clear),
                           SLOT(Py_tp_members, log_members),
                           SLOT(Py_tp_getset, log_getset),
                           SLOT(Py_tp_methods, log_methods),
                           {0, nullptr}};
PyType_Slot meter_slots[] = {SLOT(Py_tp_new, meter_new),
                             SLOT(Py_tp_dealloc, meter_dealloc),
                             SLOT(Py_tp_traverse, meter_traverse),
                             SLOT(Py_tp_clear, meter_clear),
                             SLOT(Py_tp_members, meter_members),
                             SLOT(Py_tp_getset, meter_getset),
                             SLOT(Py_tp_methods, meter_methods),
                             {0, nullptr}};
PyType_Slot record_slots[] = {
    SLOT(Py_tp_dealloc, record_dealloc), SLOT(Py_tp_getset, record_getset), {0, nullptr}};
PyType_Slot cursor_slots[] = {SLOT(Py_tp_new, cursor_new),
                              SLOT(Py_tp_dealloc, cursor_dealloc),
                              SLOT(Py_tp_traverse, cursor_traverse),
                              SLOT(Py_tp_clear, cursor_clear),
                              SLOT(Py_tp_members, cursor_members),
                              SLOT(Py_tp_getset, cursor_getset),
                              SLOT(Py_tp_methods, cursor_methods),
                              {0, nullptr}};

constexpr unsigned kWithCycles = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC;
#define MODULE "torchprof_hooks.capture.core.native."
PyType_Spec node_spec = {MODULE "Node", sizeof(Node), 0, kWithCycles, node_slots};
PyType_Spec children_spec = {MODULE "Children", sizeof(ChildrenView), 0, Py_TPFLAGS_DEFAULT, children_slots};
PyType_Spec log_spec = {MODULE "Log", sizeof(Log), 0, kWithCycles, log_slots};
PyType_Spec meter_spec = {MODULE "TensorMeter", sizeof(TensorMeter), 0, kWithCycles, meter_slots};
PyType_Spec record_spec = {MODULE "Record", sizeof(Record), 0, Py_TPFLAGS_DEFAULT, record_slots};
PyType_Spec cursor_spec = {MODULE "Cursor", sizeof(Cursor), 0, kWithCycles, cursor_slots};

PyMethodDef module_methods[] = {{"set_clock", set_clock, METH_O, nullptr},
                                {"count_tensors", count_tensors, METH_O, nullptr},
                                {"counts_tensors", counts_tensors, METH_NOARGS, nullptr},
                                {"forward_pre", FASTCALL(shown_pre), METH_FASTCALL, nullptr},
                                {"forward_post", FASTCALL(shown_post), METH_FASTCALL, nullptr},
                                {"show_modules_to", show_modules_to, METH_O, nullptr},
                                {"on_unseen_pass", on_unseen_pass, METH_O, nullptr},
                                {"seen_pass_begins", seen_pass_begins, METH_NOARGS, nullptr},
                                {"seen_pass_ends", seen_pass_ends, METH_O, nullptr},
                                {nullptr, nullptr, 0, nullptr}};

PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, "torchprof_hooks_native", nullptr, -1, module_methods, nullptr, nullptr, nullptr, nullptr};

PyTypeObject* add_type(PyObject* module, PyType_Spec* spec, const char* name) {
  PyObject* type = PyType_FromSpec(spec);
  if (type == nullptr || PyModule_AddObjectRef(module, name, type) < 0) return nullptr;
  return reinterpret_cast<PyTypeObject*>(type);
}

}  // namespace

PyMODINIT_FUNC PyInit_torchprof_hooks_native() {
  PyObject* module = PyModule_Create(&module_definition);
  if (module == nullptr) return nullptr;
  names.works_here = PyUnicode_InternFromString("works_here");
  names.called_site = PyUnicode_InternFromString("called_site");
  names.unwind_to = PyUnicode_InternFromString("unwind_to");
  names.count_if_aborted = PyUnicode_InternFromString("count_if_aborted");
  names.keep_intervals = PyUnicode_InternFromString("keep_intervals");
  names.tell_of_pause = PyUnicode_InternFromString("tell_of_pause");
  names.backward_site = PyUnicode_InternFromString("backward_site");
  names.site_of_node = PyUnicode_InternFromString("site_of_node");
  names.abort_down_to = PyUnicode_InternFromString("abort_down_to");
  names.moved = PyUnicode_InternFromString("moved");
  names.opened = PyUnicode_InternFromString("opened");
  names.closing = PyUnicode_InternFromString("closing");
  names.called = PyUnicode_InternFromString("called");
  names.returned = PyUnicode_InternFromString("returned");
  names.look_for_devices = PyUnicode_InternFromString("look_for_devices");
  names.find = PyUnicode_InternFromString("find");
  names.call = PyUnicode_InternFromString("call");
  names.aborted = PyUnicode_InternFromString("aborted");
  names.sites = PyUnicode_InternFromString("sites");
  names.shaped = PyUnicode_InternFromString("shaped");
  names.returns_to = PyUnicode_InternFromString("returns_to");
  names.keep_loose = PyUnicode_InternFromString("keep_loose");
  if (!shapes::know_tensors()) return nullptr;
  node_type = add_type(module, &node_spec, "Node");
  children_type = add_type(module, &children_spec, "Children");
  log_type = add_type(module, &log_spec, "Log");
  meter_type = add_type(module, &meter_spec, "TensorMeter");
  record_type = add_type(module, &record_spec, "Record");
  cursor_type = add_type(module, &cursor_spec, "Cursor");
  if (!node_type || !children_type || !log_type || !meter_type || !record_type || !cursor_type)
    return nullptr;
  // A binary for another torch loads without a word, and reads garbage.
  PyModule_AddStringConstant(module, "torch_version", TORCH_VERSION);
  return module;
}
