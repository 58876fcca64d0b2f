// Reads all that a cursor has measured as of one moment, also while its thread goes on. That
// takes two locks: calls of modules begin and end under the GIL, and passes move to other owners under
// the lock of the passes (see PassLock). Functions have neither: one that ends meanwhile may be missing.

#pragma once

#include "cursor.h"

namespace {

// The code of each open call, and its nanoseconds so far without the entries that
// interrupted it.
std::vector<int64_t> open_durations(Cursor* cursor, Nanoseconds now_ns) {
  std::vector<int64_t> found;
  Nanoseconds interrupted_ns = 0;
  each_open(cursor, [&](Node* node) {
    Nanoseconds so_far_ns = std::max<Nanoseconds>(now_ns - node->start_ns - interrupted_ns, 0);
    found.insert(found.end(), {node->code, so_far_ns});
    if (node->is_entry) interrupted_ns += so_far_ns;
  });
  return found;
}

// See `Times` in reference/span_log.py.
PyObject* read_times(PyObject* self, PyObject*) {
  Cursor* cursor = Cursor::of(self);
  std::vector<Sums> sums;
  std::vector<int64_t> open;
  {
    PassLock locked(cursor);
    Nanoseconds now_ns = clock_ns();  // first: a clock in Python may let other threads run
    sums = copy_of(cursor->log, &Log::sums);
    open = open_durations(cursor, now_ns);
  }
  return Py_BuildValue("NNNNNN", each_of(sums, &Sums::calls), each_of(sums, &Sums::total_ns),
                       each_of(sums, &Sums::min_ns), each_of(sums, &Sums::max_ns), squares_of(sums),
                       as_array(open));
}

// The sums of the cursor's MemoryMeter, with what open calls have done so far: used,
// acquired, retained, peak.
PyObject* read_memory(PyObject* self, PyObject*) {
  Cursor* cursor = Cursor::of(self);
  std::optional<std::vector<MemorySums>> sums;
  {
    PassLock locked(cursor);
    std::vector<Node*> open;  // innermost first
    each_open(cursor, [&](Node* node) { open.push_back(node); });
    sums = cursor->meters.memory_so_far(open);
  }
  return sums ? as_arrays(*sums) : PyErr_Format(PyExc_TypeError, "no MemoryMeter is read");
}

}  // namespace
