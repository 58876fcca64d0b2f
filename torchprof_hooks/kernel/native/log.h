// Sums over closed calls. See reference/span_log.py.

#pragma once

#include "clock.h"

#include <algorithm>
#include <vector>

namespace {

using Wide = unsigned __int128;

struct Sums {
  int64_t calls = 0, total_ns = 0, min_ns = INT64_MAX, max_ns = 0;
  Wide squares = 0;
};

// Sums of closed calls by the code of their node. `kept`: the calls one by one, until they
// are handed to `on_fold`; none while that is None. `marked`: the total times when the last step
// ended.
struct Books {
  PyObject* on_fold = Py_NewRef(Py_None);
  std::vector<Sums> sums;
  std::vector<int64_t> first_ended, kept, marked;
  int64_t spans = 0;
  Nanoseconds last_end_ns = 0;
  SpinLock lock;  // threads of the engine book without the GIL

  template <class Function>
  void each_held(Function function) {
    function(on_fold);
  }
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

  void end_step() {
    Locked locked(lock);
    marked.resize(sums.size());
    for (size_t code = 0; code < sums.size(); code++) marked[code] = sums[code].total_ns;
  }

  std::vector<int64_t> of_step() {
    Locked locked(lock);
    std::vector<int64_t> found;
    found.reserve(sums.size());
    for (size_t code = 0; code < sums.size(); code++)
      found.push_back(sums[code].total_ns - (code < marked.size() ? marked[code] : 0));
    return found;
  }
};

struct Log : WithPart<Log, Books> {};

PyTypeObject* log_type;
//: Numbers of one call in `kept`, and the length of `kept` at which it is handed over.
constexpr size_t kFields = 3;
constexpr size_t kFoldAt = kFields * 4096;

PyObject* as_list(const std::vector<int64_t>& numbers) {
  PyObject* list = PyList_New(Py_ssize_t(numbers.size()));
  for (size_t place = 0; list != nullptr && place < numbers.size(); place++)
    PyList_SET_ITEM(list, Py_ssize_t(place), PyLong_FromLongLong(numbers[place]));
  return list;
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

// Whether so many calls are kept that they are to be handed over. Functions ask without the GIL.
template <class Calls>
bool is_full(Calls* calls) {
  if (!calls->is_kept()) return false;
  Locked locked(calls->lock);
  return calls->kept.size() >= kFoldAt;
}

// Hands the kept calls to `on_fold`: one row of `fields` numbers for each. They are taken
// out first, since more may be kept while Python runs.
template <class Calls>
PyObject* fold(Calls* calls, size_t fields) {
  std::vector<int64_t> kept;
  {
    Locked locked(calls->lock);
    kept.swap(calls->kept);
  }
  if (kept.empty() || !calls->is_kept()) Py_RETURN_NONE;
  Owned flat(as_array(kept));
  if (!flat) return nullptr;
  Owned rows(PyObject_CallMethod(flat.get(), "reshape", "nn", Py_ssize_t(-1), Py_ssize_t(fields)));
  if (!rows) return nullptr;
  return PyObject_CallOneArg(calls->on_fold, rows.get());
}

// A copy of what the object's lock guards.
template <class Object, class Part, class Value>
Value copy_of(Object* object, Value Part::*which) {
  Locked locked(object->lock);
  return object->*which;
}

// One of the sums as an array, with one item for each node, by its code.
template <class Sum>
PyObject* each_of(const std::vector<Sum>& sums, int64_t Sum::*field) {
  std::vector<int64_t> found;
  found.reserve(sums.size());
  for (const Sum& sum : sums) found.push_back(sum.*field);
  return as_array(found);
}

PyObject* as_int(Wide number) {
  Owned high(PyLong_FromUnsignedLongLong(uint64_t(number >> 64)));
  Owned low(PyLong_FromUnsignedLongLong(uint64_t(number)));
  Owned bits(PyLong_FromLong(64));
  Owned shifted(PyNumber_Lshift(high.get(), bits.get()));
  return PyNumber_Or(shifted.get(), low.get());
}

PyObject* squares_of(const std::vector<Sums>& sums) {
  PyObject* list = PyList_New(Py_ssize_t(sums.size()));
  for (size_t place = 0; list != nullptr && place < sums.size(); place++)
    PyList_SET_ITEM(list, Py_ssize_t(place), as_int(sums[place].squares));
  return list;
}

PyObject* log_fold(PyObject* self, PyObject*) { return fold(Log::of(self), kFields); }

template <int64_t Sums::*field>
PyObject* log_sums(PyObject* self, void*) {
  return each_of(copy_of(Log::of(self), &Log::sums), field);
}

PyObject* log_first_ended(PyObject* self, void*) { return as_list(copy_of(Log::of(self), &Log::first_ended)); }

PyObject* log_end_step(PyObject* self, PyObject*) {
  Log::of(self)->end_step();
  Py_RETURN_NONE;
}

PyObject* log_of_step(PyObject* self, void*) { return as_array(Log::of(self)->of_step()); }

PyMemberDef log_members[] = {{"on_fold", T_OBJECT, offsetof(Log, on_fold), 0, nullptr},
                             {"spans", T_LONGLONG, offsetof(Log, spans), READONLY, nullptr},
                             {nullptr, 0, 0, 0, nullptr}};

PyGetSetDef log_getset[] = {{"calls", log_sums<&Sums::calls>, nullptr, nullptr, nullptr},
                            {"total_ns", log_sums<&Sums::total_ns>, nullptr, nullptr, nullptr},
                            {"min_ns", log_sums<&Sums::min_ns>, nullptr, nullptr, nullptr},
                            {"first_ended", log_first_ended, nullptr, nullptr, nullptr},
                            {"of_step_ns", log_of_step, nullptr, nullptr, nullptr},
                            {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMethodDef log_methods[] = {{"fold", log_fold, METH_NOARGS, nullptr},
                            {"end_step", log_end_step, METH_NOARGS, nullptr},
                            {nullptr, nullptr, 0, nullptr}};

PyType_Slot log_slots[] = {SLOT(Py_tp_new, Log::make),
                           SLOT(Py_tp_dealloc, Log::dealloc),
                           SLOT(Py_tp_traverse, Log::traverse),
                           SLOT(Py_tp_clear, Log::clear),
                           SLOT(Py_tp_members, log_members),
                           SLOT(Py_tp_getset, log_getset),
                           SLOT(Py_tp_methods, log_methods),
                           {0, nullptr}};
PyType_Spec log_spec = {MODULE "Log", sizeof(Log), 0, kWithCycles, log_slots};

}  // namespace
