// What the kernel calls of the meters, and all that it includes of this folder. The meters read memory, and stamp
// devices, where calls begin and end: they know sites (`Node`), but neither cursors nor passes.

#pragma once

#include "device_meter.h"
#include "memory_meter.h"

#include <optional>
#include <vector>

namespace {

// The meters that one cursor reads. Where there is none of memory, or of a device, what is for it does nothing.
class Meters {
 public:
  // A MemoryMeter, and a DeviceMeter; None, or null when the cursor goes: none.
  PyObject *memory = Py_NewRef(Py_None), *device = Py_NewRef(Py_None);

  // Memory

  // site: of the cursor. 0, or -1 with an exception.
  int set_memory(PyObject* value, const Relaxed<Node*>* site) {
    if (set<&meter_type>(&memory, value) < 0) return -1;
    if (MemoryMeter* meter = memory_meter()) meter->ledger->follow(site);
    return 0;
  }
  // The cursor of this `site` is about to go; the meter may live longer.
  void unfollow(const Relaxed<Node*>* site) {
    if (MemoryMeter* meter = memory_meter()) meter->ledger->unfollow(site);
  }
  // What memory is now, for `opened` and `closed`. left: the site that the thread was working for until now.
  memory::Reading read(Node* left) {
    MemoryMeter* meter = memory_meter();
    return meter == nullptr ? memory::Reading{} : meter->read(left);
  }
  void opened(Node* node, const memory::Reading& now) {
    if (MemoryMeter* meter = memory_meter()) meter->opened(node, now);
  }
  void closed(Node* node, const memory::Reading& now) {
    if (MemoryMeter* meter = memory_meter()) meter->closed(node, now);
  }
  // The call at `node` was open before this meter was there: it is measured from here on.
  void go_on(Node* node) {
    MemoryMeter* meter = memory_meter();
    if (meter != nullptr && node->is_metered) meter->opened(node, meter->read());
  }
  // Whether so many calls are kept one by one that they are to be folded.
  bool is_fold_due() {
    MemoryMeter* meter = memory_meter();
    return meter != nullptr && is_full(meter);
  }
  // False: an exception.
  bool fold_if_due() { return !is_fold_due() || is_done(fold(memory_meter(), kMemoryFields)); }
  // The sums of all calls, with what those at the `open` sites have done so far; nothing without a meter.
  std::optional<std::vector<MemorySums>> memory_so_far(const std::vector<Node*>& open) {
    if (MemoryMeter* meter = memory_meter()) return sums_so_far(meter, open);
    return std::nullopt;
  }

  // Devices. followed: the thread of the cursor; the engine may run parts of a pass in others.

  int set_device(PyObject* value) { return set<&device_meter_type>(&device, value); }
  // Begins to read the device if the program has begun to use it; open calls are measured from here on. Asked
  // only where an entry begins, or a call that is new: a program that never uses a device pays for no readings.
  void look_for_device(Node* site) {
    if (is_there(device) && !DeviceMeter::of(device)->is_awake) DeviceMeter::of(device)->wake(site->code);
  }
  // The thread enters the call at `node`, or returns to it: on the device of the innermost module around it whose
  // parameters are all on one. Returns whether a device is read.
  bool enter(Node* node, long followed) {
    DeviceMeter* meter = device_meter();
    if (meter == nullptr) return false;
    Node* placed = node;
    while (placed->device < 0 && placed->caller != nullptr) placed = placed->around();
    meter->enter(node->code, placed->device, is_here(followed), node->communicates);
    return true;
  }
  // From now on, devices work for `node`, on which no thread is.
  void wait(Node* node, long followed) {
    if (DeviceMeter* meter = device_meter()) meter->enter(node->code, kCurrent, is_here(followed));
  }
  // The engine runs an autograd node for the call at `node`, or has run one. is_leaf: it accumulates a gradient.
  void node_begins(Node* node, bool is_leaf, long followed) {
    DeviceMeter* meter = device_meter();
    if (meter != nullptr && !is_here(followed)) meter->node_begins(node->code, is_leaf);
  }
  void node_ended(long followed) {
    DeviceMeter* meter = device_meter();
    if (meter != nullptr && !is_here(followed)) meter->node_ended();
  }

  template <class Function>
  void each_held(Function function) {
    function(memory), function(device);
  }

 private:
  static bool is_there(PyObject* meter) { return meter != nullptr && meter != Py_None; }
  static bool is_here(long thread) { return long(PyThread_get_thread_ident()) == thread; }
  MemoryMeter* memory_meter() const { return is_there(memory) ? MemoryMeter::of(memory) : nullptr; }
  // Null until the program uses a device, and in steps without stamps.
  DeviceMeter* device_meter() const {
    return is_there(device) && DeviceMeter::of(device)->is_read() ? DeviceMeter::of(device) : nullptr;
  }
  template <PyTypeObject** type>
  static int set(PyObject** meter, PyObject* value) {
    if (value == nullptr || (value != Py_None && !is_a<type>(value))) {
      PyErr_SetString(PyExc_TypeError, "not for this attribute");
      return -1;
    }
    Py_SETREF(*meter, Py_NewRef(value));
    return 0;
  }
};

PyMethodDef meter_functions[] = {{"count_tensors", count_tensors, METH_O, nullptr},
                                 {"counts_tensors", counts_tensors, METH_NOARGS, nullptr},
                                 {"observe_allocators", observe_allocators, METH_O, nullptr},
                                 {"observes_allocators", observes_allocators, METH_NOARGS, nullptr},
                                 {nullptr, nullptr, 0, nullptr}};

// What Python uses of the meters. False: an exception.
bool add_meters(PyObject* module) {
  unused_events();
  memory::allocator();  // made before other threads can use it: torch publishes it without a lock
  return add_type(module, &meter_spec, &meter_type) && add_type(module, &device_meter_spec, &device_meter_type) &&
         PyModule_AddFunctions(module, meter_functions) == 0;
}

// In the child of a fork: another thread may have held the lock of unused events.
void reset_meters_in_fork() { new (&unused_events()) UnusedEvents(); }

}  // namespace
