// The memory of tensors on the CPU, read at each begin and end of a call.

#pragma once

#include "log.h"
#include "memory.h"
#include "moves.h"

namespace {

struct MemorySums {
  int64_t used = 0, retained = 0, peak = 0;

  void add(int64_t more_used, int64_t more_retained, int64_t rise) {
    used += more_used;
    retained += more_retained;
    peak = std::max(peak, rise);
  }
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
  // Without an effect on what is read later; in any thread.
  memory::Reading peek() const { return reader.account ? reader.account->peek(&reader) : memory::Reading{}; }
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
    sums[size_t(node->code)].add(used, retained, rise);
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
  return each_of(copy_of(meter_of(self)), field);
}

PyObject* meter_fold(PyObject* self, PyObject*) { return fold(meter_of(self), kMemoryFields); }

PyObject* meter_moved(PyObject* self, PyObject* args) {
  std::vector<Node*> closed, opened;
  if (!as_move(args, &closed, &opened)) return nullptr;
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

PyType_Slot meter_slots[] = {SLOT(Py_tp_new, meter_new),
                             SLOT(Py_tp_dealloc, meter_dealloc),
                             SLOT(Py_tp_traverse, meter_traverse),
                             SLOT(Py_tp_clear, meter_clear),
                             SLOT(Py_tp_members, meter_members),
                             SLOT(Py_tp_getset, meter_getset),
                             SLOT(Py_tp_methods, meter_methods),
                             {0, nullptr}};
PyType_Spec meter_spec = {MODULE "TensorMeter", sizeof(TensorMeter), 0, kWithCycles, meter_slots};

}  // namespace
