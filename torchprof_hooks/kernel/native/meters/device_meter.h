// How long calls keep an accelerator busy, by stamps that the device takes itself. For any device that
// has events, by torch's generic interface. When no stamp is taken, and why: see `EventClock` in
// measure/accelerator.py.

#pragma once

#include "../clock.h"
#include "../log.h"
#include "stamps.h"

namespace {

//: At one stamp in so many, the device is asked whether it waits for the host. A prime: steps
//: seldom have a multiple of it in stamps, so different places in a step are asked.
constexpr uint64_t kAskEvery = 37;

//: Instead of the index of a device: the thread's current one.
constexpr int kCurrent = -1;

// How often a device was asked, before a stamp, whether it waits for the host, and how often
// it did, having nothing left to do.
struct Waits {
  int64_t asked = 0, waited = 0;
};

// Stamps the current stream of one kind of device, for one cursor.
// is_stamping: in steps that are measured without stamps, it is not read.
struct DeviceReader {
  c10::DeviceType kind;
  PyObject* is_initialized = nullptr;  // whether the program has put devices of this kind into use
  PyObject* is_in_use = nullptr;     // whether the program uses the device of an index
  PyObject* is_capturing = nullptr;  // whether the current stream is captured into a graph, or None
  std::atomic<bool> is_awake{false}, is_stamping{true};
  std::optional<Stamps> stamps;
  std::atomic<uint64_t> calls{0};    // of `stamp`
  std::atomic<int> home_device{kCurrent};  // that the followed thread has entered last, unless the engine has since
  SpinLock lock;                     // for what follows: threads of the engine stamp, too
  std::vector<char> in_use;          // of each index: whether `is_in_use` has said yes
  Waits waits;

  template <class Function>
  void each_held(Function function) {
    function(is_initialized), function(is_in_use), function(is_capturing);
  }
  bool is_read() const { return is_awake && is_stamping; }
  // If the program uses a device by now, begins to read it, with a first stamp. code: of the open call.
  void wake(int64_t code) {
    if (!says(is_initialized, -1) || !uses_any()) return;
    is_awake = true;
    enter(code, kCurrent, /*is_home=*/true);
  }
  // The thread enters the call with this code, or returns to it.
  // index: of the device on which it is; kCurrent: the thread's. is_home: whether the thread is the followed
  // one, and not one in which the engine runs a part of a pass. communicates: with other processes.
  void enter(int64_t code, int index, bool is_home, bool communicates = false) {
    if (!stamp(is_home ? index : kCurrent, code, is_home, communicates)) stamps->interrupt();
  }
  // The engine begins a node in a thread of its own, for the call with this code; `is_leaf`: for the one that
  // the thread has worked for last. Where several devices have such threads, they work for several calls.
  void node_begins(int64_t code, bool is_leaf) {
    if (stamps->devices() < 2) return;
    Stamps::Chain here = stamps->chain_of(current().device_index());
    if (is_leaf) code = here.last_owner;
    if (here.owner != code) enter(code, kCurrent, /*is_home=*/false);
  }
  // It has ended: until the thread's next node, the device may wait for another one.
  void node_ended() {
    if (stamps->devices() < 2) return;
    if (stamps->chain_of(current().device_index()).owner != kNobody) enter(kNobody, kCurrent, /*is_home=*/false);
  }

 private:
  c10::Stream current() const {
    c10::impl::VirtualGuardImpl device(kind);
    return device.getStream(device.getDevice());
  }
  // Stamps the current stream of a device; if the program does not use the thread's, of the one that it does.
  // Records no event while the stream is captured into a graph, where that would be an error. False while the
  // program uses no device, and if the device fails, which the program learns itself. May call Python (see `says`).
  bool stamp(int index, int64_t code, bool is_home, bool communicates) {
    uint64_t number = calls++;
    try {
      c10::impl::VirtualGuardImpl device(kind);
      c10::Device wanted = index < 0 ? device.getDevice() : c10::Device(kind, c10::DeviceIndex(index));
      if (!uses(wanted.index())) {
        int other = is_home ? only_in_use() : kCurrent;
        if (other == kCurrent) {
          leave_home(device, kCurrent, is_home);
          return false;
        }
        wanted.set_index(c10::DeviceIndex(other));
      }
      c10::Stream stream = device.getStream(wanted);
      leave_home(device, stream.device_index(), is_home);
      if (captures(device, stream)) return stamps->pass_by(stream.device_index(), code), true;
      if (is_apart(stream, code, communicates)) return true;
      if (number % kAskEvery == kAskEvery - 1) ask(device, stream);
      stamps->record(device, stream, code);
    } catch (const std::exception&) {
      return false;
    }
    return true;
  }
  // Whether a call that communicates has a stream of its own, or such a call returns to the one with this code:
  // that keeps the device, whose work goes on meanwhile.
  bool is_apart(const c10::Stream& stream, int64_t code, bool communicates) {
    Stamps::Chain chain = stamps->chain_of(stream.device_index());
    return chain.owner != kNobody && chain.stream != stream.id() && (communicates || chain.owner == code);
  }
  // What the followed thread has done on another device is over: until it returns there, that may wait.
  void leave_home(const c10::impl::VirtualGuardImpl& device, c10::DeviceIndex entered, bool is_home) {
    int home = home_device.exchange(is_home ? int(entered) : kCurrent);
    if (home == kCurrent || home == entered) return;
    c10::Device left(kind, c10::DeviceIndex(home));
    // A thread of the engine has other current streams.
    c10::Stream stream = is_home ? device.getStream(left)
                                 : c10::Stream(c10::Stream::UNSAFE, left, stamps->chain_of(left.index()).stream);
    if (captures(device, stream))
      stamps->interrupt();
    else
      stamps->record(device, stream, kNobody);
  }
  void ask(const c10::impl::VirtualGuardImpl& device, const c10::Stream& stream) {
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
  // The device that the program uses; kCurrent if it uses several, or none.
  int only_in_use() {
    Locked locked(lock);
    auto first = std::find(in_use.begin(), in_use.end(), true);
    bool is_only = first != in_use.end() && std::find(first + 1, in_use.end(), true) == in_use.end();
    return is_only ? int(first - in_use.begin()) : kCurrent;
  }
  bool uses_any() {
    c10::DeviceIndex count = c10::impl::VirtualGuardImpl(kind).deviceCount();
    for (c10::DeviceIndex index = 0; index < count; index++)
      if (uses(index)) return true;
    return false;
  }
  bool uses(c10::DeviceIndex index) {
    if (index < 0) return false;
    size_t place = size_t(index);
    {
      Locked locked(lock);
      if (place < in_use.size() && in_use[place]) return true;
    }
    if (!says(is_in_use, index)) return false;
    Locked locked(lock);
    if (place >= in_use.size()) in_use.resize(place + 1);
    return in_use[place] = true;
  }
  template <class Guard>
  bool captures(const Guard& device, const c10::Stream& stream) {
    if (std::optional<bool> found = driver_captures(stream)) return *found;
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

// False: an exception.
bool kind_of(const char* name, c10::DeviceType* kind) {
  try {
    *kind = c10::Device(name).type();
    return true;
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
    return false;
  }
}

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
  if (kind_of(kind, &meter->kind))
    meter->stamps.emplace(meter->kind);
  else
    Py_CLEAR(self);
  return self;
}

int device_meter_clear(PyObject* self) {
  // They become None, not null: a cursor that still reads the meter calls them.
  DeviceMeter::of(self)->each_held([](PyObject*& held) { Py_XSETREF(held, Py_NewRef(Py_None)); });
  return 0;
}

// Waits for the device, without the GIL, and books everything. Returns whether
// the sums have changed since the last time.
PyObject* device_meter_settle(PyObject* self, PyObject*) {
  bool has_changed;
  Py_BEGIN_ALLOW_THREADS
  has_changed = DeviceMeter::of(self)->stamps->settle();
  Py_END_ALLOW_THREADS
  return PyBool_FromLong(has_changed);
}

// `mark`: `marked_ns` is the time between the stamps so far. `interrupt`: what was queued since the last is nobody's.
template <auto does>
PyObject* device_meter_do(PyObject* self, PyObject*) {
  (*DeviceMeter::of(self)->stamps.*does)();
  Py_RETURN_NONE;
}

// Nanoseconds by code of the node, of what is booked.
template <auto which>
PyObject* device_meter_sums(PyObject* self, void*) {
  return as_array((*DeviceMeter::of(self)->stamps.*which)());
}

// How many devices were stamped.
PyObject* device_meter_devices(PyObject* self, void*) {
  return PyLong_FromLongLong(DeviceMeter::of(self)->stamps->devices());
}

// How many stamps there are.
PyObject* device_meter_stamps(PyObject* self, void*) {
  return PyLong_FromLongLong(DeviceMeter::of(self)->stamps->recorded());
}

PyObject* device_meter_is_stamping(PyObject* self, void*) {
  return PyBool_FromLong(DeviceMeter::of(self)->is_stamping);
}

int device_meter_set_stamping(PyObject* self, PyObject* value, void*) {
  int is_true = value == nullptr ? 0 : PyObject_IsTrue(value);
  if (is_true < 0) return -1;
  DeviceMeter::of(self)->stamps->interrupt();
  DeviceMeter::of(self)->is_stamping = is_true != 0;
  return 0;
}

PyObject* device_meter_is_awake(PyObject* self, void*) { return PyBool_FromLong(DeviceMeter::of(self)->is_awake); }

// How often the device was asked, before a stamp, whether it waits for the host, and how often it did.
PyObject* device_meter_waits(PyObject* self, void*) {
  Waits waits = copy_of(DeviceMeter::of(self), &DeviceMeter::waits);
  return Py_BuildValue("LL", (long long)waits.asked, (long long)waits.waited);
}

PyGetSetDef device_meter_getset[] = {{"device_ns", device_meter_sums<&Stamps::sums_ns>, nullptr, nullptr, nullptr},
                                     {"marked_ns", device_meter_sums<&Stamps::marked_ns>, nullptr, nullptr, nullptr},
                                     {"devices", device_meter_devices, nullptr, nullptr, nullptr},
                                     {"stamps", device_meter_stamps, nullptr, nullptr, nullptr},
                                     {"is_stamping", device_meter_is_stamping, device_meter_set_stamping, nullptr, nullptr},
                                     {"waits", device_meter_waits, nullptr, nullptr, nullptr},
                                     {"is_awake", device_meter_is_awake, nullptr, nullptr, nullptr},
                                     {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMethodDef device_meter_methods[] = {{"settle", device_meter_settle, METH_NOARGS, nullptr},
                                      {"mark", device_meter_do<&Stamps::mark>, METH_NOARGS, nullptr},
                                      {"interrupt", device_meter_do<&Stamps::interrupt>, METH_NOARGS, nullptr},
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
