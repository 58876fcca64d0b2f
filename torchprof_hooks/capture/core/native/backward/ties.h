// Records of the nodes of outermost calls, tied to their graphs: what `keep_intervals`
// does in Python, for most calls.

#pragma once

#include "../calls/shapes.h"
#include "../cursor.h"

namespace {

//: How many parts of an output are looked at. Longer ones are left to Python.
constexpr Py_ssize_t kOutputsSearched = 64;

bool is_plain_tensor(PyObject* value) {
  return Py_TYPE(value) == shapes::tensor_type || Py_TYPE(value) == shapes::parameter_type;
}

bool is_plain_sequence(PyObject* value) { return PyTuple_CheckExact(value) || PyList_CheckExact(value); }

// Whether `tie_all` can handle the outputs: a plain tensor, or a short list of such and None.
bool is_plain(PyObject* outputs) {
  if (is_plain_tensor(outputs)) return true;
  if (!is_plain_sequence(outputs) || PySequence_Fast_GET_SIZE(outputs) > kOutputsSearched) return false;
  for (Py_ssize_t place = 0; place < PySequence_Fast_GET_SIZE(outputs); place++) {
    PyObject* part = PySequence_Fast_GET_ITEM(outputs, place);
    if (part != Py_None && !is_plain_tensor(part)) return false;
  }
  return true;
}

// Removes the newest intervals, those that begin at number `low` or later, and returns them.
std::vector<int64_t> take_from(Cursor* cursor, int64_t low) {
  std::vector<int64_t>& all = cursor->intervals;
  size_t first = all.size();
  while (first > 0 && all[first - 2] >= low) first -= kFields;
  std::vector<int64_t> taken(all.begin() + ptrdiff_t(first), all.end());
  all.resize(first);
  return taken;
}

// A record of these intervals, which is to live as long as the graph of their calls. A new
// reference, or null for an exception.
// thread: torch's number of the thread that has made the nodes.
PyObject* make_record(Cursor* cursor, const std::vector<int64_t>& numbers, int64_t low,
                      uint64_t thread = at::RecordFunction::currentThreadId()) {
  PyObject* made = record_type->tp_alloc(record_type, 0);
  if (made == nullptr) return nullptr;
  Record* record = reinterpret_cast<Record*>(made);
  new (&record->intervals) std::shared_ptr<Intervals>(std::make_shared<Intervals>(numbers));
  record->intervals->low = std::min<int64_t>(record->intervals->low, low);
  PassLock locked(cursor);
  cursor->records[thread].add(record->intervals);
  return made;
}

// Has the node of a tensor hold the record, if the node's number is in that. False: an
// exception.
bool tie(PyObject* tensor, PyObject* record, PyObject* key) {
  Owned node(PyObject_GetAttr(tensor, names.grad_fn));
  if (!node) {  // a view that was changed in place without gradients
    if (!PyErr_ExceptionMatches(PyExc_RuntimeError)) return false;
    PyErr_Clear();
    return true;
  }
  if (node.get() == Py_None) return true;
  Owned number(call_method(node.get(), names._sequence_nr));
  if (!number) return false;
  int64_t value = PyLong_AsLongLong(number.get());
  if (value == -1 && PyErr_Occurred()) return false;
  const Intervals& intervals = *reinterpret_cast<Record*>(record)->intervals;
  if (value < intervals.low || value >= intervals.high) return true;
  Owned metadata(PyObject_GetAttr(node.get(), names.metadata));
  return metadata && PyObject_SetItem(metadata.get(), key, record) == 0;
}

bool tie_all(PyObject* outputs, PyObject* record, PyObject* key) {
  shapes::Unseen unseen;
  if (is_plain_tensor(outputs)) return tie(outputs, record, key);
  for (Py_ssize_t place = 0; place < PySequence_Fast_GET_SIZE(outputs); place++) {
    PyObject* part = PySequence_Fast_GET_ITEM(outputs, place);
    if (part != Py_None && !tie(part, record, key)) return false;
  }
  return true;
}

// A fixed number of the newest records is kept. If this one is big, they may take too much
// memory together: Python drops the oldest then. False: an exception.
bool bound_newest(PyObject* self, PyObject* record) {
  return bytes_of(record) <= kBigRecordBytes || is_done(call_method(self, names.forget_oldest));
}

// Makes a record of the intervals from number `low` on, and ties it to what was returned.
// 1: done. 0: left to Python, and nothing is done. -1: an exception.
int keep_here(PyObject* self, int64_t low, PyObject* outputs) {
  Cursor* cursor = Cursor::of(self);
  if (cursor->ties == Py_None || !is_plain(outputs)) return 0;
  std::vector<int64_t> own = take_from(cursor, low);
  bool are_loose = !cursor->intervals.empty() && cursor->site == cursor->outside;
  if (are_loose && !is_done(call_method(self, names.keep_loose))) return -1;
  if (own.empty()) return 1;
  PyObject* key = PyTuple_GET_ITEM(cursor->ties, 0);
  PyObject* newest = PyTuple_GET_ITEM(cursor->ties, 1);
  Owned record(make_record(cursor, own, low));
  if (!record) return -1;
  if (!is_done(call_method(newest, names.append, record.get())) || !bound_newest(self, record.get())) return -1;
  return tie_all(outputs, record.get(), key) ? 1 : -1;
}

}  // namespace
