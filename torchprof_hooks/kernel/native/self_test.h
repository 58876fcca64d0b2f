// Compares torch, as it runs here, with the headers that this core was compiled with. A binary for another
// torch loads without a word, and then reads garbage, or writes where it must not.
//
// Torch notifies us of a node that Python runs, whose numbers Python knows, and of an operator in it.

#pragma once

#include "clock.h"

#include <ATen/record_function.h>
#include <c10/core/StorageImpl.h>

namespace self_test {

// A tensor's storage, as Python knows it.
bool storage_fits(c10::StorageImpl* storage, void* address, size_t bytes) {
  return storage->nbytes() == bytes && storage->data() == address && storage->device().is_cpu() &&
         storage->data_ptr().get() == address;
}

// What torch reports of the nodes that this thread runs, and of the operators in them.
struct Reported {
  int64_t number;                // that the node has
  c10::ArrayRef<int64_t> shape;  // of the first input of the operator
  int nodes = 0, nodes_right = 0, operators_right = 0;
};
thread_local Reported* reported = nullptr;

bool is_right(const at::RecordFunction& node) {
  uint64_t here = at::RecordFunction::currentThreadId();
  return node.seqNr() == reported->number && node.threadId() == here && node.forwardThreadId() == here;
}

bool has_shape(const at::RecordFunction& called) {
  c10::ArrayRef<const c10::IValue> inputs = called.inputs();
  return inputs.size() == 2 && inputs[0].isTensor() && inputs[0].toTensor().sizes() == reported->shape;
}

std::unique_ptr<at::ObserverContext> begins(const at::RecordFunction& called) {
  if (reported == nullptr) return nullptr;
  if (called.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    reported->nodes++;
    reported->nodes_right += is_right(called);
  } else if (reported->nodes_right == 1) {  // else its inputs may be anywhere
    reported->operators_right += has_shape(called);
  }
  return nullptr;
}

// Calls a function of Python that runs one node, which calls one operator. False: torch reports something
// else of these, or Python raised.
bool is_reported_right(PyObject* run, Reported expected) {
  reported = &expected;
  at::CallbackHandle handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(begins).needsInputs(true).scopes(
          {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
  bool is_run = is_done(PyObject_CallNoArgs(run));
  at::removeCallback(handle);
  reported = nullptr;
  return is_run && expected.nodes == 1 && expected.nodes_right == 1 && expected.operators_right >= 1;
}

// Returns what of torch is not as our headers say; "": nothing.
const char* differs(PyObject* run, Reported expected, c10::StorageImpl* storage, void* address, size_t bytes) {
  if (!storage_fits(storage, address, bytes)) return "the storage of a tensor";
  if (next_number() != expected.number + 1) return "the counter of autograd nodes";
  if (!is_reported_right(run, expected)) return "what is reported of autograd nodes and operators";
  return "";
}

// run: runs the autograd node `number`, which this thread has made last, and which calls an operator with
// a tensor of this shape. storage, address, bytes: of any tensor on the CPU.
PyObject* py_differs(PyObject*, PyObject* args) {
  PyObject* run;
  long long number, rows, columns;
  unsigned long long storage, address, bytes;
  if (!PyArg_ParseTuple(args, "OL(LL)KKK", &run, &number, &rows, &columns, &storage, &address, &bytes)) return nullptr;
  int64_t shape[] = {rows, columns};
  const char* found = differs(run, Reported{number, shape}, reinterpret_cast<c10::StorageImpl*>(storage),
                              reinterpret_cast<void*>(address), size_t(bytes));
  return PyErr_Occurred() ? nullptr : PyUnicode_FromString(found);
}

}  // namespace self_test
