// How long calls keep an accelerator busy, by stamps that the device takes itself: they are
// put into its queue of work at each begin and end of a call. For any device that has events,
// by torch's generic interface. When no stamp is taken, and why: see `EventClock` in
// measure/device_clock.py; why spans wait: `DeviceMeter` in core/reference_meters.py.

#pragma once

#include "../log.h"
#include "capture_mode.h"
#include "../node.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <deque>

namespace {

// A call that has ended, and whose stamps the device may not have reached yet.
struct Span {
  int64_t code;
  Stamp start, end;
};

//: Number of waiting spans at which those that the device has finished are booked.
constexpr size_t kResolveAt = 1024;
//: At one stamp in so many, the device is asked whether it waits for the host. A prime: steps
//: seldom have a multiple of it in stamps, so different places in a step are asked.
constexpr uint64_t kAskEvery = 17;

// How often a device was asked, before a stamp, whether it waits for the host, and how often
// it did, having nothing left to do.
struct Waits {
  uint64_t stamps = 0;
  int64_t asked = 0, waited = 0;
};

// Stamps the current stream of one kind of device, for one cursor.
struct DeviceReader {
  c10::DeviceType kind;
  PyObject* is_initialized = nullptr;  // whether the program has put devices of this kind into use
  PyObject* is_in_use = nullptr;     // whether the program uses the device of an index
  PyObject* is_capturing = nullptr;  // whether the current stream is captured into a graph, or None
  std::atomic<bool> is_awake{false};  // whether it is read
  std::vector<char> in_use;          // of each index: whether `is_in_use` has said yes
  std::deque<Span> waiting;
  std::vector<int64_t> sums_ns;        // by code of the node
  std::vector<int64_t> marked_ns;      // the same, of spans before the mark
  size_t unmarked = 0;                 // how many spans that wait ended before the mark
  Waits waits;
  std::atomic<bool> is_unread{false};  // whether the sums have changed since the last `settle`
  SpinLock lock;  // from `waiting` to `waits`: threads of the engine work on them, too

  template <class Function>
  void each_held(Function function) {
    function(is_initialized), function(is_in_use), function(is_capturing);
  }
  // If the program uses a device by now, begins to read it and returns the first stamp; else null.
  Stamp wake() {
    Stamp first = says(is_initialized, -1) ? stamp() : nullptr;
    if (first != nullptr) is_awake = true;
    return first;
  }
  // A stamp in the current stream. Null while the program does not use the device, or while the
  // stream is captured into a graph, where an event would be an error; and if the device fails,
  // which the program learns itself. May call Python (see `says`).
  Stamp stamp() {
    try {
      c10::impl::VirtualGuardImpl device(kind);
      c10::Stream stream = device.getStream(device.getDevice());
      if (!uses(stream.device_index()) || captures(device, stream)) return nullptr;
      ask(device, stream);
      Stamp found = take_event(kind, stream.device_index());
      found->record(stream);
      return found;
    } catch (const std::exception&) {
      return nullptr;
    }
  }
  Stamp read(Node*) { return stamp(); }
  void opened(Node* node, const Stamp& now) { node->stamp = now; }
  void closed(Node* node, const Stamp& now) {
    Stamp start = std::exchange(node->stamp, nullptr);
    if (!start || !now) return;
    size_t count;
    {
      Locked locked(lock);
      waiting.push_back({node->code, std::move(start), now});
      count = waiting.size();
    }
    while (count > kResolveAt && book_next(/*waits=*/false)) count--;
  }
  // Books the span that has waited longest. False: there is none, or the device has not reached its
  // stamps yet. waits: wait for the device in that case.
  bool book_next(bool waits) {
    Span span;
    {
      Locked locked(lock);
      if (waiting.empty()) return false;
      span = std::move(waiting.front());
      waiting.pop_front();
    }
    try {
      QuestionsAllowed allowed;
      if (waits) {
        span.start->synchronize();
        span.end->synchronize();
        // The end may be in another queue than the start, and be passed first.
      } else if (!span.end->query() || !span.start->query()) {
        Locked locked(lock);
        waiting.push_front(std::move(span));
        return false;
      }
      book(span.code, nanoseconds(span));
    } catch (const std::exception&) {  // the device has failed, and comes to no stamp any more
      book(span.code, 0);
    }
    return true;
  }

 private:
  void ask(const c10::impl::VirtualGuardImpl& device, const c10::Stream& stream) {
    {
      Locked locked(lock);
      if (++waits.stamps % kAskEvery != 0) return;
    }
    bool waits_now;
    try {
      QuestionsAllowed allowed;
      waits_now = device.queryStream(stream);
    } catch (const std::exception&) {  // not all kinds of devices can tell
      return;
    }
    Locked locked(lock);
    waits.asked += 1;
    waits.waited += waits_now;
  }
  static int64_t nanoseconds(const Span& span) {
    if (span.start->device_index() != span.end->device_index()) return 0;  // no common clock
    return std::max<int64_t>(std::llround(span.start->elapsedTime(*span.end) * 1e6), 0);
  }
  void book(int64_t code, int64_t duration_ns) {
    Locked locked(lock);
    is_unread = true;
    add(sums_ns, code, duration_ns);
    if (unmarked == 0) return;
    unmarked--;
    add(marked_ns, code, duration_ns);
  }
  static void add(std::vector<int64_t>& sums, int64_t code, int64_t duration_ns) {
    if (size_t(code) >= sums.size()) sums.resize(size_t(code) + 1);
    sums[size_t(code)] += duration_ns;
  }
  bool uses(c10::DeviceIndex index) {
    if (index < 0) return false;
    if (size_t(index) >= in_use.size()) in_use.resize(size_t(index) + 1);
    if (!in_use[size_t(index)]) in_use[size_t(index)] = says(is_in_use, index);
    return in_use[size_t(index)];
  }
  template <class Guard>
  bool captures(const Guard& device, const c10::Stream& stream) {
    if constexpr (requires { device.isStreamCapturing(stream); }) return device.isStreamCapturing(stream);
    return is_capturing != Py_None && says(is_capturing, -1);
  }
  // Calls `question`, with `index` unless that is below 0; whether it returns a true value. Takes the
  // GIL, which the thread may not have. No exception can pass here: it counts as no.
  static bool says(PyObject* question, int index) {
    WithGil gil;
    Owned answer(index < 0 ? PyObject_CallNoArgs(question) : PyObject_CallFunction(question, "i", index));
    if (!answer) raise_others_soon();
    return answer && PyObject_IsTrue(answer.get()) == 1;
  }
};

struct DeviceMeter : WithPart<DeviceMeter, DeviceReader> {};

PyTypeObject* device_meter_type;

PyObject* device_meter_new(PyTypeObject* type, PyObject* args, PyObject*) {
  const char* kind;
  PyObject *is_initialized, *is_in_use, *is_capturing;
  if (!PyArg_ParseTuple(args, "sOOO", &kind, &is_initialized, &is_in_use, &is_capturing)) return nullptr;
  PyObject* self = DeviceMeter::make(type);
  if (self == nullptr) return nullptr;
  DeviceMeter* meter = DeviceMeter::of(self);
  meter->is_initialized = Py_NewRef(is_initialized);
  meter->is_in_use = Py_NewRef(is_in_use);
  meter->is_capturing = Py_NewRef(is_capturing);
  try {
    meter->kind = c10::Device(kind).type();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
    Py_CLEAR(self);
  }
  return self;
}

int device_meter_clear(PyObject* self) {
  // They become None, not null: a cursor that still reads the meter calls them.
  DeviceMeter::of(self)->each_held([](PyObject*& held) { Py_XSETREF(held, Py_NewRef(Py_None)); });
  return 0;
}

// See `DeviceMeter.settle` in core/reference_meters.py. Waits without the GIL. Returns whether
// the sums have changed since the last time.
PyObject* device_meter_settle(PyObject* self, PyObject*) {
  Py_BEGIN_ALLOW_THREADS
  while (DeviceMeter::of(self)->book_next(/*waits=*/true)) {
  }
  Py_END_ALLOW_THREADS
  return PyBool_FromLong(DeviceMeter::of(self)->is_unread.exchange(false));
}

// See `DeviceMeter.mark` in core/reference_meters.py.
PyObject* device_meter_mark(PyObject* self, PyObject*) {
  DeviceMeter* meter = DeviceMeter::of(self);
  Locked locked(meter->lock);
  meter->marked_ns = meter->sums_ns;
  meter->unmarked = meter->waiting.size();
  meter->is_unread = true;
  Py_RETURN_NONE;
}

// Nanoseconds by code of the node, of what is booked.
template <auto which>
PyObject* device_meter_sums(PyObject* self, void*) {
  return as_array(copy_of(DeviceMeter::of(self), which));
}

PyObject* device_meter_is_awake(PyObject* self, void*) { return PyBool_FromLong(DeviceMeter::of(self)->is_awake); }

// See `DeviceMeter.waits` in core/reference_meters.py.
PyObject* device_meter_waits(PyObject* self, void*) {
  Waits waits = copy_of(DeviceMeter::of(self), &DeviceMeter::waits);
  return Py_BuildValue("LL", (long long)waits.asked, (long long)waits.waited);
}

PyGetSetDef device_meter_getset[] = {{"device_ns", device_meter_sums<&DeviceMeter::sums_ns>, nullptr, nullptr, nullptr},
                                     {"marked_ns", device_meter_sums<&DeviceMeter::marked_ns>, nullptr, nullptr, nullptr},
                                     {"waits", device_meter_waits, nullptr, nullptr, nullptr},
                                     {"is_awake", device_meter_is_awake, nullptr, nullptr, nullptr},
                                     {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMethodDef device_meter_methods[] = {{"settle", device_meter_settle, METH_NOARGS, nullptr},
                                      {"mark", device_meter_mark, METH_NOARGS, nullptr},
                                      {nullptr, nullptr, 0, nullptr}};

PyType_Slot device_meter_slots[] = {SLOT(Py_tp_new, device_meter_new),
                                    SLOT(Py_tp_dealloc, DeviceMeter::dealloc),
                                    SLOT(Py_tp_traverse, DeviceMeter::traverse),
                                    SLOT(Py_tp_clear, device_meter_clear),
                                    SLOT(Py_tp_getset, device_meter_getset),
                                    SLOT(Py_tp_methods, device_meter_methods),
                                    {0, nullptr}};
PyType_Spec device_meter_spec = {MODULE "DeviceMeter", sizeof(DeviceMeter), 0, kWithCycles,
                                 device_meter_slots};

}  // namespace
