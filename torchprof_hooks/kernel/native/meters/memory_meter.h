// Memory, read at each begin and end of a call: that of tensors on the CPU, or of a device.

#pragma once

#include "../log.h"
#include "counting_allocator.h"
#include "device_bytes.h"
#include "../node.h"

#include <array>
#include <optional>

namespace {

struct Taken {
  int64_t used, acquired, retained;
};

// What was taken since the open call at `node` began.
inline Taken taken_since(const Node& node, const memory::Reading& now) {
  return {now.used - node.used_bytes, now.acquired - node.acquired_bytes, now.level - node.level_bytes};
}

struct MemorySums {
  int64_t used = 0, acquired = 0, retained = 0, peak = 0;

  void add(const Taken& taken, int64_t rise) {
    used += taken.used;
    acquired += taken.acquired;
    retained += taken.retained;
    peak = std::max(peak, rise);
  }
};

// Reads memory, and adds up what calls took: on the CPU, the tensors of the thread that reads
// first; on a device, what all threads took. `kept`: the calls one by one, if there is an
// `on_fold`.
struct MemoryReader {
  PyObject *on_fold = Py_NewRef(Py_None), *counter = nullptr;
  memory::Reader reader;
  std::optional<memory::DeviceBytes> device;
  std::vector<MemorySums> sums;
  std::vector<int64_t> kept;
  int64_t begin_bytes = 0;                   // the level when it was read first
  int64_t high_water_bytes = 0, blamed = 0;  // the most above that, and the code of the node that ran then
  SpinLock lock;                             // guards `sums` and `kept`
  memory::Ledger* ledger = new memory::Ledger();  // off, but for profiles
  bool has_missed = false;    // whether the ledger was not notified of all that a device's allocator did
  int64_t used_at_begin = 0;  // what that had handed out when the ledger began to observe it

  ~MemoryReader() {
    if (reader.account != nullptr) reader.account->remove_reader(&reader);
    memory::AllocatorReports::all().leave(ledger);
    ledger->close();
  }
  template <class Function>
  void each_held(Function function) {
    function(on_fold), function(counter);
  }
  bool is_kept() const { return on_fold != nullptr && on_fold != Py_None; }

  memory::Reading read() {
    if (device) return device->read();
    bool is_first = reader.account == nullptr;
    if (is_first) memory::Accounts::here().add_reader(&reader);
    memory::Reading now = reader.account->read(&reader);
    if (is_first) begin_bytes = now.level;
    return now;
  }
  // The same as `read`, but without an effect on later readings; in any thread.
  memory::Reading peek() {
    if (device) return device->peek();
    return reader.account ? reader.account->peek(&reader) : memory::Reading{};
  }
  // Whether the ledger has the blocks that are taken from now on.
  void keep_owners(bool does) {
    if (!device) {
      ledger->turn(does);
      memory::Ledger* wanted = does ? ledger : nullptr;
      reader.account ? reader.account->set_ledger(&reader, wanted) : void(reader.ledger = wanted);
      return;
    }
    auto& reports = memory::AllocatorReports::all();
    if (does && !reports.is_listening(ledger)) {
      memory::Reading now = device->peek();
      used_at_begin = now.used;
      reports.listen(ledger, &*device, now.level);
    } else if (!does) {
      has_missed |= !is_complete();
      reports.leave(ledger);
    }
  }
  // Whether it was notified of all blocks until now: a device's allocator counts them, too.
  bool is_complete() {
    if (!device) return true;
    if (has_missed || !ledger->is_right()) return false;
    if (!memory::AllocatorReports::all().is_listening(ledger)) return true;
    for (int tries = 0; tries < 100; tries++) {  // other threads take and free blocks meanwhile
      int64_t before = ledger->level();
      memory::Reading now = device->peek();
      if (now.level != before && now.level != ledger->level()) continue;
      return now.used == used_at_begin || ledger->has_observed();
    }
    return false;
  }
  // owner: the node that the thread was working for until now.
  memory::Reading read(Node* owner) {
    memory::Reading now = read();
    owner->peak_bytes = std::max<int64_t>(owner->peak_bytes, now.peak);
    if (now.peak - begin_bytes > high_water_bytes) {
      high_water_bytes = now.peak - begin_bytes;
      blamed = owner->code;
    }
    return now;
  }
  void opened(Node* node, const memory::Reading& now) {
    node->used_bytes = now.used;
    node->acquired_bytes = now.acquired;
    node->level_bytes = node->peak_bytes = now.level;
    node->is_metered = 1;
  }
  void closed(Node* node, const memory::Reading& now) {
    if (!std::exchange(node->is_metered, 0)) return;
    Taken taken = taken_since(*node, now);
    int64_t rise = node->peak_bytes - node->level_bytes;
    if (Node* around = node->around()) around->peak_bytes = std::max<int64_t>(around->peak_bytes, node->peak_bytes);
    Locked locked(lock);
    if (size_t(node->code) >= sums.size()) sums.resize(size_t(node->code) + 1);
    sums[size_t(node->code)].add(taken, rise);
    if (is_kept()) kept.insert(kept.end(), {node->code, taken.used, taken.acquired, taken.retained, rise});
  }
};

struct MemoryMeter : WithPart<MemoryMeter, MemoryReader> {};

PyTypeObject* meter_type;
//: Numbers of one call in `kept`.
constexpr size_t kMemoryFields = 5;

// The sums of all calls, with what those at the `open` nodes have done so far, innermost first.
std::vector<MemorySums> sums_so_far(MemoryMeter* meter, const std::vector<Node*>& open) {
  std::vector<MemorySums> sums = copy_of(meter, &MemoryMeter::sums);
  memory::Reading now = meter->peek();
  int64_t peak = now.peak;
  for (Node* node : open) {
    if (!node->is_metered) continue;
    peak = std::max<int64_t>(peak, node->peak_bytes);
    if (size_t(node->code) >= sums.size()) sums.resize(size_t(node->code) + 1);
    sums[size_t(node->code)].add(taken_since(*node, now), peak - node->level_bytes);
  }
  return sums;
}

// used, acquired, retained, peak
PyObject* as_arrays(const std::vector<MemorySums>& sums) {
  return Py_BuildValue("NNNN", each_of(sums, &MemorySums::used), each_of(sums, &MemorySums::acquired),
                       each_of(sums, &MemorySums::retained), each_of(sums, &MemorySums::peak));
}

// MemoryMeter(): of tensors on the CPU. MemoryMeter(kind, index, counter): of that device, see
// `DeviceBytes`.
PyObject* meter_new(PyTypeObject* type, PyObject* args, PyObject*) {
  const char* kind = nullptr;
  int index = -1;
  PyObject* counter = nullptr;
  if (!PyArg_ParseTuple(args, "|siO", &kind, &index, &counter)) return nullptr;
  PyObject* self = MemoryMeter::make(type);
  if (self == nullptr || kind == nullptr) return self;
  try {
    MemoryMeter* meter = MemoryMeter::of(self);
    meter->counter = Py_XNewRef(counter);
    meter->device.emplace(c10::Device(kind).type(), index, meter->counter);
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
    Py_CLEAR(self);
  }
  return self;
}

// used, acquired, level, peak since the last time.
PyObject* meter_read(PyObject* self, PyObject*) {
  memory::Reading now = MemoryMeter::of(self)->read();
  return Py_BuildValue("LLLL", (long long)now.used, (long long)now.acquired, (long long)now.level,
                       (long long)now.peak);
}

// The index of the device; below 0 for the CPU, and as long as it is not known.
PyObject* meter_index(PyObject* self, void*) {
  const auto& device = MemoryMeter::of(self)->device;
  return PyLong_FromLong(device ? device->index() : -1);
}

template <int64_t MemorySums::*field>
PyObject* meter_sums(PyObject* self, void*) {
  return each_of(copy_of(MemoryMeter::of(self), &MemoryMeter::sums), field);
}

// Measuring begins, for the first time or again.
PyObject* meter_start(PyObject* self, PyObject*) {
  MemoryMeter::of(self)->read();
  Py_RETURN_NONE;
}

// keep_owners(does): whether the ledger is notified of the blocks that are taken from now on.
PyObject* meter_keep_owners(PyObject* self, PyObject* does) {
  int is_wanted = PyObject_IsTrue(does);
  if (is_wanted < 0) return nullptr;
  MemoryMeter::of(self)->keep_owners(is_wanted);
  Py_RETURN_NONE;
}

PyObject* meter_is_complete(PyObject* self, void*) { return PyBool_FromLong(MemoryMeter::of(self)->is_complete()); }

// turned_out([(storage, kind, code, moves, tensor), ...]): tensors, by the addresses of their storages
// (`StorageImpl`), turn out to be of these kinds. code: that of their owner, if the ledger does not know
// who took them, or if `moves`.
PyObject* meter_turned_out(PyObject* self, PyObject* all) {
  if (!PyList_Check(all)) return PyErr_SetString(PyExc_TypeError, "not a list"), nullptr;
  for (Py_ssize_t place = 0; place < PyList_GET_SIZE(all); place++) {
    unsigned long long storage;
    int kind, code, moves;
    PyObject* tensor;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(all, place), "KiipO", &storage, &kind, &code, &moves, &tensor))
      return nullptr;
    if (kind < 0 || kind >= memory::kKinds) return PyErr_SetString(PyExc_ValueError, "no such kind"), nullptr;
    MemoryMeter* meter = MemoryMeter::of(self);
    auto* found = reinterpret_cast<c10::StorageImpl*>(storage);
    if (meter->device)
      memory::AllocatorReports::all().turned_out(meter->ledger, found, memory::Kind(kind), code, moves);
    else
      memory::turned_out(meter->ledger, found, memory::Kind(kind), code, moves);
  }
  Py_RETURN_NONE;
}

// settle(kinds): see `Ledger::settle`; a byte for each code.
PyObject* meter_settle(PyObject* self, PyObject* kinds) {
  Py_buffer bytes;
  if (PyObject_GetBuffer(kinds, &bytes, PyBUF_SIMPLE) < 0) return nullptr;
  MemoryMeter::of(self)->ledger->settle(static_cast<const uint8_t*>(bytes.buf), size_t(bytes.len));
  PyBuffer_Release(&bytes);
  Py_RETURN_NONE;
}

using Held = std::vector<std::array<int64_t, 3>>;

PyObject* list_of(const Held& held) {
  Owned all(PyList_New(0));
  if (!all) return nullptr;
  for (const auto& [code, kind, bytes] : held) {
    Owned one(Py_BuildValue("(LLL)", (long long)code, (long long)kind, (long long)bytes));
    if (!one || PyList_Append(all.get(), one.get()) < 0) return nullptr;
  }
  return Py_NewRef(all.get());
}

// [(code, kind, bytes), ...], all that is in use: now, or when most was.
PyObject* meter_holdings(PyObject* self, PyObject* at_peak) {
  int is_at_peak = PyObject_IsTrue(at_peak);
  if (is_at_peak < 0) return nullptr;
  Held held;
  auto keep = [&](int32_t code, memory::Kind kind, int64_t bytes) { held.push_back({code, kind, bytes}); };
  memory::Ledger* ledger = MemoryMeter::of(self)->ledger;
  is_at_peak ? ledger->each_at_peak(keep) : ledger->each_now(keep);
  return list_of(held);
}

// (bytes, code, steps that have ended since, holdings) of the last time that there was no memory; None: there was no such time.
PyObject* meter_failure(PyObject* self, void*) {
  memory::Ledger::Failure found = MemoryMeter::of(self)->ledger->failure();
  if (found.bytes == 0) Py_RETURN_NONE;
  return Py_BuildValue("(LiLN)", (long long)found.bytes, int(found.code), (long long)found.steps_ended,
                       list_of(found.held));
}

// The peak of a step: see `Ledger::step_ended`.
PyObject* meter_step_ended(PyObject* self, PyObject*) {
  return PyLong_FromLongLong(MemoryMeter::of(self)->ledger->step_ended());
}

// (cells, used cells, blocks, spare blocks): what the ledger has, and what all of them share.
PyObject* meter_sizes(PyObject* self, void*) {
  auto [cells, used] = MemoryMeter::of(self)->ledger->sizes();
  auto [blocks, spare] = memory::blocks().sizes();
  return Py_BuildValue("nnnn", Py_ssize_t(cells), Py_ssize_t(used), Py_ssize_t(blocks), Py_ssize_t(spare));
}

// record(does): see `Ledger::record`.
PyObject* meter_record(PyObject* self, PyObject* does) {
  int is_wanted = PyObject_IsTrue(does);
  if (is_wanted < 0) return nullptr;
  MemoryMeter::of(self)->ledger->record(is_wanted);
  Py_RETURN_NONE;
}

// The bytes of an array of `MemoryEvent`; recording ends.
PyObject* meter_take_events(PyObject* self, PyObject*) {
  std::vector<memory::MemoryEvent> events = MemoryMeter::of(self)->ledger->take_events();
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(events.data()),
                                   Py_ssize_t(events.size() * sizeof(memory::MemoryEvent)));
}

// note(what, code, [storage, ...]): something happens to the call with this code, and to these blocks.
PyObject* meter_note(PyObject* self, PyObject* args) {
  unsigned char what;
  int code;
  PyObject* storages;
  if (!PyArg_ParseTuple(args, "biO!", &what, &code, &PyList_Type, &storages)) return nullptr;
  MemoryMeter* meter = MemoryMeter::of(self);
  memory::Ledger* ledger = meter->ledger;
  if (PyList_GET_SIZE(storages) == 0) ledger->note(memory::What(what), code);
  for (Py_ssize_t place = 0; place < PyList_GET_SIZE(storages); place++) {
    auto* storage = static_cast<c10::StorageImpl*>(PyLong_AsVoidPtr(PyList_GET_ITEM(storages, place)));
    if (PyErr_Occurred()) return nullptr;
    if (meter->device)
      memory::AllocatorReports::all().note(ledger, storage, memory::What(what), code);
    else
      memory::note(ledger, storage, memory::What(what), code);
  }
  Py_RETURN_NONE;
}

template <int64_t (memory::Ledger::*field)()>
PyObject* meter_of_ledger(PyObject* self, void*) {
  return PyLong_FromLongLong((MemoryMeter::of(self)->ledger->*field)());
}

PyObject* meter_fold(PyObject* self, PyObject*) { return fold(MemoryMeter::of(self), kMemoryFields); }

// Begins, or ends, counting tensors on the CPU. Returns whether they are counted now.
PyObject* count_tensors(PyObject*, PyObject* does) {
  int is_wanted = PyObject_IsTrue(does);
  if (is_wanted < 0) return nullptr;
  return PyBool_FromLong(memory::allocator().count(is_wanted));
}

PyObject* counts_tensors(PyObject*, PyObject*) {
  return PyBool_FromLong(memory::allocator().is_counting());
}

// Begins, or ends, observing what devices' allocators do. Returns whether any is observed now.
PyObject* observe_allocators(PyObject*, PyObject* does) {
  int is_wanted = PyObject_IsTrue(does);
  if (is_wanted < 0) return nullptr;
  return PyBool_FromLong(memory::AllocatorReports::all().observe(is_wanted));
}

PyObject* observes_allocators(PyObject*, PyObject*) { return PyBool_FromLong(memory::AllocatorReports::all().is_observed()); }

PyMemberDef meter_members[] = {
    {"on_fold", T_OBJECT, offsetof(MemoryMeter, on_fold), 0, nullptr},
    {"high_water_bytes", T_LONGLONG, offsetof(MemoryMeter, high_water_bytes), READONLY, nullptr},
    {"blamed", T_LONGLONG, offsetof(MemoryMeter, blamed), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyGetSetDef meter_getset[] = {{"used", meter_sums<&MemorySums::used>, nullptr, nullptr, nullptr},
                              {"acquired", meter_sums<&MemorySums::acquired>, nullptr, nullptr, nullptr},
                              {"retained", meter_sums<&MemorySums::retained>, nullptr, nullptr, nullptr},
                              {"peak", meter_sums<&MemorySums::peak>, nullptr, nullptr, nullptr},
                              {"index", meter_index, nullptr, nullptr, nullptr},
                              {"level_bytes", meter_of_ledger<&memory::Ledger::level>, nullptr, nullptr, nullptr},
                              {"peak_bytes", meter_of_ledger<&memory::Ledger::peak>, nullptr, nullptr, nullptr},
                              {"peak_code", meter_of_ledger<&memory::Ledger::peak_code>, nullptr, nullptr, nullptr},
                              {"is_complete", meter_is_complete, nullptr, nullptr, nullptr},
                              {"failure", meter_failure, nullptr, nullptr, nullptr},
                              {"sizes", meter_sizes, nullptr, nullptr, nullptr},
                              {"epoch", meter_of_ledger<&memory::Ledger::epoch>, nullptr, nullptr, nullptr},
                              {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMethodDef meter_methods[] = {{"read", meter_read, METH_NOARGS, nullptr},
                               {"start", meter_start, METH_NOARGS, nullptr},
                               {"keep_owners", meter_keep_owners, METH_O, nullptr},
                               {"turned_out", meter_turned_out, METH_O, nullptr},
                               {"settle", meter_settle, METH_O, nullptr},
                               {"holdings", meter_holdings, METH_O, nullptr},
                               {"step_ended", meter_step_ended, METH_NOARGS, nullptr},
                               {"record", meter_record, METH_O, nullptr},
                               {"take_events", meter_take_events, METH_NOARGS, nullptr},
                               {"note", meter_note, METH_VARARGS, nullptr},
                               {"fold", meter_fold, METH_NOARGS, nullptr},
                               {nullptr, nullptr, 0, nullptr}};

PyType_Slot meter_slots[] = {SLOT(Py_tp_new, meter_new),
                             SLOT(Py_tp_dealloc, MemoryMeter::dealloc),
                             SLOT(Py_tp_traverse, MemoryMeter::traverse),
                             SLOT(Py_tp_clear, MemoryMeter::clear),
                             SLOT(Py_tp_members, meter_members),
                             SLOT(Py_tp_getset, meter_getset),
                             SLOT(Py_tp_methods, meter_methods),
                             {0, nullptr}};
PyType_Spec meter_spec = {MODULE "MemoryMeter", sizeof(MemoryMeter), 0, kWithCycles, meter_slots};

}  // namespace
