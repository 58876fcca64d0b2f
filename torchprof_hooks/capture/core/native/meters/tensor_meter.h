// The memory of tensors on the CPU, read at each begin and end of a call.

#pragma once

#include "../log.h"
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
struct TensorReader {
  PyObject* on_fold = Py_NewRef(Py_None);
  memory::Reader reader;
  std::vector<MemorySums> sums;
  std::vector<int64_t> kept;
  int64_t begin_bytes = 0;                   // the level when it was read first
  int64_t high_water_bytes = 0, blamed = 0;  // the highest level above that, and the code of whose it was
  SpinLock lock;

  ~TensorReader() {
    if (reader.account != nullptr) reader.account->remove_reader(&reader);
  }
  std::array<PyObject**, 1> held() { return {&on_fold}; }
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

using TensorMeter = WithPart<TensorReader>;

PyTypeObject* meter_type;
//: Numbers of one call in `kept`.
constexpr size_t kMemoryFields = 5;

TensorMeter* meter_of(PyObject* self) { return TensorMeter::of(self); }

PyObject* meter_new(PyTypeObject* type, PyObject*, PyObject*) { return TensorMeter::make(type); }

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

PyObject* meter_moved(PyObject* self, PyObject* args) { return moved(meter_of(self), args); }

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
                             SLOT(Py_tp_dealloc, TensorMeter::dealloc),
                             SLOT(Py_tp_traverse, TensorMeter::traverse),
                             SLOT(Py_tp_clear, TensorMeter::clear),
                             SLOT(Py_tp_members, meter_members),
                             SLOT(Py_tp_getset, meter_getset),
                             SLOT(Py_tp_methods, meter_methods),
                             {0, nullptr}};
PyType_Spec meter_spec = {MODULE "TensorMeter", sizeof(TensorMeter), 0, kWithCycles, meter_slots};

}  // namespace
