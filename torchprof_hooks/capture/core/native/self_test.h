// Compares torch, as it runs here, with the headers that this core was compiled with. A binary for another
// torch loads without a word, and then reads garbage, or writes where it must not.
//
// First what cannot crash is compared: torch's tables of virtual functions, and what a function writes that
// returns a structure by value. Then torch tells us of a node that Python runs, whose numbers
// Python knows. Each comparison presupposes only those before it.

#pragma once

#include "by_value.h"
#include "meters/counting_allocator.h"

#include <ATen/record_function.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <dlfcn.h>
#ifdef __linux__
#include <link.h>
#endif

#include <cstring>

namespace self_test {

using Table = const void* const*;  // addresses of virtual functions

Table table_of(const void* object) { return *static_cast<const Table*>(object); }

// The place of a virtual function in the table of its class (by the ABI of C++ that all of Linux and macOS has).
template <class Member>
size_t place_of(Member function) {
  ptrdiff_t offset;
  std::memcpy(&offset, &function, sizeof offset);
  return size_t(offset) / sizeof(void*);  // without the lowest bit, which some machines set
}

// Whether the functions of torch's device guards are in the order of our headers. Two of these are made from
// one template: where both have the same function, it is of their base class, and those places are ours, too.
bool guards_fit() {
  using c10::DeviceType, c10::impl::NoOpDeviceGuardImpl;
  static const NoOpDeviceGuardImpl<DeviceType::CPU> our_cpu;
  static const NoOpDeviceGuardImpl<DeviceType::Meta> our_meta;
  auto registered = [](DeviceType kind) -> const void* { return c10::impl::device_guard_impl_registry[size_t(kind)].load(); };
  const void *cpu = registered(DeviceType::CPU), *meta = registered(DeviceType::Meta);
  if (cpu == nullptr || meta == nullptr) return false;
  for (size_t place = place_of(&c10::impl::DeviceGuardImplInterface::elapsedTime) + 1; place-- > 0;) {
    bool is_base = table_of(cpu)[place] == table_of(meta)[place];
    if (is_base != (table_of(&our_cpu)[place] == table_of(&our_meta)[place])) return false;
  }
  return true;
}

// The length of the table of an object, by its symbol; `otherwise` where there is none.
size_t table_length(const void* object, size_t otherwise) {
#ifdef __linux__
  Dl_info info;
  const ElfW(Sym)* symbol = nullptr;
  if (dladdr1(table_of(object), &info, (void**)&symbol, RTLD_DL_SYMENT) == 0 || symbol == nullptr) return otherwise;
  const void* end = static_cast<const char*>(info.dli_saddr) + symbol->st_size;
  return size_t(static_cast<const void* const*>(end) - table_of(object));
#else
  return otherwise;
#endif
}

// The allocator for the CPU: its table, and what it returns by value.
bool allocators_fit() {
  c10::Allocator* theirs = c10::GetDefaultCPUAllocator();
  size_t length = place_of(&c10::Allocator::copy_data) + 1;
  if (table_length(theirs, length) != length) return false;
  constexpr size_t kBytes = 60;
  c10::DataPtr* data;
  size_t written = written_bytes<c10::DataPtr>([&] { return theirs->allocate(kBytes); }, &data);
  // The last member is a device of two bytes, and padding may follow.
  if (written > sizeof(c10::DataPtr) || written + alignof(c10::DataPtr) <= sizeof(c10::DataPtr)) return false;
  if (!data->device().is_cpu() || data->get() != data->get_context()) return false;
  if (data->get_deleter() == nullptr || data->get_deleter() != theirs->raw_deleter()) return false;
  char text[] = "copied";
  theirs->copy_data(data->get(), text, sizeof text);
  bool is_copied = std::memcmp(data->get(), text, sizeof text) == 0;
  data->~DataPtr();
  return is_copied;
}

// A tensor's storage, as Python knows it.
bool storage_fits(c10::StorageImpl* storage, void* address, size_t bytes) {
  return storage->nbytes() == bytes && storage->data() == address && storage->device().is_cpu() &&
         storage->data_ptr().get() == address;
}

// What torch tells of the nodes that this thread runs, and of the operators in them.
struct Told {
  int64_t number;                // that the node has
  c10::ArrayRef<int64_t> shape;  // of the first input of the operator
  int nodes = 0, nodes_right = 0, operators_right = 0;
};
thread_local Told* told = nullptr;

bool is_right(const at::RecordFunction& node) {
  uint64_t here = at::RecordFunction::currentThreadId();
  return node.seqNr() == told->number && node.threadId() == here && node.forwardThreadId() == here;
}

bool has_shape(const at::RecordFunction& called) {
  c10::ArrayRef<const c10::IValue> inputs = called.inputs();
  return inputs.size() == 2 && inputs[0].isTensor() && inputs[0].toTensor().sizes() == told->shape;
}

std::unique_ptr<at::ObserverContext> begins(const at::RecordFunction& called) {
  if (told == nullptr) return nullptr;
  if (called.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    told->nodes++;
    told->nodes_right += is_right(called);
  } else if (told->nodes_right == 1) {  // else its inputs may be anywhere
    told->operators_right += has_shape(called);
  }
  return nullptr;
}

// Calls a function of Python that runs one node, which calls one operator. False: torch tells something
// else of these, or Python raised.
bool is_told_right(PyObject* run, Told expected) {
  told = &expected;
  at::CallbackHandle handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(begins).needsInputs(true).scopes(
          {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
  bool is_run = is_done(PyObject_CallNoArgs(run));
  at::removeCallback(handle);
  told = nullptr;
  return is_run && expected.nodes == 1 && expected.nodes_right == 1 && expected.operators_right >= 1;
}

// Returns what of torch is not as our headers say; "": nothing.
const char* differs(PyObject* run, Told expected, c10::StorageImpl* storage, void* address, size_t bytes) {
  if (!guards_fit()) return "the table of device guards";
  if (!allocators_fit()) return "the allocator of the CPU";
  if (!storage_fits(storage, address, bytes)) return "the storage of a tensor";
  if (next_number() != expected.number + 1) return "the counter of autograd nodes";
  if (!is_told_right(run, expected)) return "what is told of autograd nodes and operators";
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
  const char* found = differs(run, Told{number, shape}, reinterpret_cast<c10::StorageImpl*>(storage),
                              reinterpret_cast<void*>(address), size_t(bytes));
  return PyErr_Occurred() ? nullptr : PyUnicode_FromString(found);
}

}  // namespace self_test
