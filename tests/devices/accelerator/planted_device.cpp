// A device of torch's that does nothing but take planted time: a PrivateUse1 backend
// with streams, events, and an allocator that counts.
//
// Nothing here looks at a clock. There is one "now" of the host, which tests move; a
// stream is a queue whose end lies at `ends_ns`, and work that is put into it begins
// there or now, whichever is later. Waiting for the device moves the host's now.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/csrc/api/include/torch/version.h>

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "planted_kernels.h"
#include "planted_trace.h"

// torch asks devices of all kinds what they have allocated.
#define COUNTS_MEMORY (TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR >= 209)

namespace c10 {
// Called through an entry that the loader protects against writing, as it does with some libraries.
[[gnu::noplt]] void reportOutOfMemoryToProfiler(int64_t, size_t, size_t, Device);
}  // namespace c10

namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
constexpr int kDevices = 2;
constexpr int kStreams = 4;

struct Event {
  int64_t time_ns;
};

struct Queues {
  std::mutex lock;
  int64_t now_ns = 0, latency_ns = 0;
  std::array<std::array<int64_t, kStreams>, kDevices> ends_ns{};
  std::array<int64_t, kDevices> chosen{};
  int64_t waits = 0, records = 0, events = 0, queries = 0;
  int64_t asked_whether_captured = 0;      // the guard, or Python
  int64_t record_ns = 0;                   // what an event takes in its queue
  bool captures = false, fails = false;
  bool captures_elsewhere = false;  // a stream of the program's that nobody here asks for
  int64_t ended_captures = 0;
};

Queues queues;
std::atomic<bool> is_in_use{false};
thread_local c10::DeviceIndex current_device = 0;

void wait_until(int64_t time_ns) {
  if (time_ns <= queues.now_ns) return;
  queues.waits++;
  queues.now_ns = time_ns;
}

// As CUDA does it: a question ends captures in global mode, unless it is asked in relaxed mode.
void asked() {
  queues.queries++;
  if (!queues.captures_elsewhere) return;
  auto* mode = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "planted_capture_mode"));
  if (mode == nullptr || mode() != 2) queues.ended_captures++;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return c10::Device(kType, current_device); }
  void setDevice(c10::Device device) const override { current_device = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device = device.index(); }
  c10::Stream getStream(c10::Device device) const override {
    std::lock_guard held(queues.lock);
    return c10::Stream(c10::Stream::UNSAFE, device, queues.chosen[device.index()]);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    static std::atomic<int64_t> last{0};
    if (!device.has_index()) device = getDevice();
    return c10::Stream(c10::Stream::UNSAFE, device, 1 + last++ % (kStreams - 1));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    c10::Stream before = getStream(stream.device());
    std::lock_guard held(queues.lock);
    queues.chosen[stream.device_index()] = stream.id();
    return before;
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, 0);
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    std::lock_guard held(queues.lock);
    TORCH_CHECK(!queues.captures, "an event was recorded while a graph is captured");
    TORCH_CHECK(!queues.fails, "the device has failed");
    if (*event == nullptr) {
      *event = new Event{0};
      queues.events++;
    }
    queues.records++;
    int64_t& end_ns = queues.ends_ns[stream.device_index()][stream.id()];
    if (queues.record_ns > 0) end_ns = std::max(queues.now_ns, end_ns) + queues.record_ns;
    static_cast<Event*>(*event)->time_ns = std::max(queues.now_ns, end_ns);
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  // Not an override before torch 2.13: there, Python is asked.
  virtual bool isStreamCapturing(const c10::Stream&) const {
    queues.asked_whether_captured++;
    return queues.captures;
  }
  void block(void* event, const c10::Stream& stream) const override {
    std::lock_guard held(queues.lock);
    int64_t& end_ns = queues.ends_ns[stream.device_index()][stream.id()];
    end_ns = std::max(end_ns, static_cast<Event*>(event)->time_ns);
  }
  bool queryStream(const c10::Stream& stream) const override {
    TORCH_CHECK(!queues.captures, "a stream was asked while a graph is captured");
    std::lock_guard held(queues.lock);
    asked();
    return queues.ends_ns[stream.device_index()][stream.id()] <= queues.now_ns;
  }
  bool queryEvent(void* event) const override {
    TORCH_CHECK(!queues.captures, "an event was asked while a graph is captured");
    std::lock_guard held(queues.lock);
    asked();
    return event == nullptr || static_cast<Event*>(event)->time_ns <= queues.now_ns;
  }
  void synchronizeEvent(void* event) const override {
    std::lock_guard held(queues.lock);
    asked();
    wait_until(static_cast<Event*>(event)->time_ns);
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    std::lock_guard held(queues.lock);
    wait_until(queues.ends_ns[stream.device_index()][stream.id()]);
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    std::lock_guard held(queues.lock);
    for (int64_t end_ns : queues.ends_ns[index]) wait_until(end_ns);
  }
  double elapsedTime(void* begin, void* end, const c10::DeviceIndex) const override {
    return (static_cast<Event*>(end)->time_ns - static_cast<Event*>(begin)->time_ns) / 1e6;
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return is_in_use; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  void setCurrentDevice(c10::DeviceIndex index) const override { current_device = index; }
};

#if COUNTS_MEMORY
// Counts, and reports to torch's profiler, as CUDA's does; what it hands out is memory of the host, in
// blocks of a multiple of 512 bytes.
struct Counting final : c10::DeviceAllocator {
  struct Level {
    c10::CachingAllocator::Stat allocated, reserved;
  };
  struct Block {
    int64_t bytes;
    c10::DeviceIndex device;
  };
  std::recursive_mutex lock;  // guards what follows
  std::array<Level, kDevices> levels;
  std::unordered_map<void*, Block> blocks;
  int64_t most_bytes = INT64_MAX;
  bool reports = true;

  static Counting& instance() {
    static Counting* only = new Counting();
    return *only;
  }
  static void give_back(void* address) { instance().free(address); }

  c10::DataPtr allocate(size_t wanted) override {
    is_in_use = true;
    c10::Device device(kType, current_device);
    if (wanted == 0) return {nullptr, nullptr, &give_back, device};
    std::lock_guard held(lock);
    int64_t bytes = int64_t(wanted + 511) / 512 * 512;
    Level& level = levels[current_device];
    if (level.allocated.current + bytes > most_bytes) {
      c10::reportOutOfMemoryToProfiler(bytes, level.allocated.current, level.reserved.current, device);
      TORCH_CHECK_WITH(OutOfMemoryError, false, "planted out of memory");
    }
    void* address = std::aligned_alloc(512, bytes);
    blocks[address] = {bytes, current_device};
    level.allocated.increase(bytes);
    int64_t missing = level.allocated.current - level.reserved.current;
    if (missing > 0) level.reserved.increase(missing);
    report(address, bytes, device);
    return {address, address, &give_back, device};
  }
  void free(void* address) {
    if (address == nullptr) return;
    std::lock_guard held(lock);
    auto found = blocks.find(address);
    Block block = found->second;
    blocks.erase(found);
    levels[block.device].allocated.decrease(block.bytes);
    report(address, -block.bytes, c10::Device(kType, block.device));
    std::free(address);
  }
  void report(void* address, int64_t bytes, c10::Device device) {
    const Level& level = levels[device.index()];
    if (reports)
      c10::reportMemoryUsageToProfiler(address, bytes, level.allocated.current, level.reserved.current, device);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void*, const void*, size_t) const override {}
  bool initialized() override { return is_in_use; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    std::lock_guard held(lock);
    stats.allocated_bytes[0] = levels[device].allocated;
    stats.reserved_bytes[0] = levels[device].reserved;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override { levels[device].allocated.reset_accumulated(); }
  void resetPeakStats(c10::DeviceIndex device) override { levels[device].allocated.reset_peak(); }
};
#endif

// Nanoseconds; or these, the name of the kernel, and whether its launch is recorded.
PyObject* add_work(PyObject*, PyObject* argument) {
  long long work_ns = 0;
  const char* name = "planted_kernel";
  int is_seen = 1;
  if (PyTuple_Check(argument)) {
    if (!PyArg_ParseTuple(argument, "Ls|p", &work_ns, &name, &is_seen)) return nullptr;
  } else {
    work_ns = PyLong_AsLongLong(argument);
    if (work_ns == -1 && PyErr_Occurred()) return nullptr;
  }
  std::lock_guard held(queues.lock);
  is_in_use = true;
  int64_t stream = queues.chosen[current_device];
  int64_t& end_ns = queues.ends_ns[current_device][stream];
  int64_t start_ns = std::max(end_ns, queues.now_ns + queues.latency_ns);
  end_ns = start_ns + work_ns;
  planted_trace::ran({queues.now_ns, start_ns, end_ns, current_device, stream, name, is_seen ? gettid() : 0});
  Py_RETURN_NONE;
}

PyObject* pass_time(PyObject*, PyObject* argument) {
  int64_t time_ns = PyLong_AsLongLong(argument);
  if (time_ns == -1 && PyErr_Occurred()) return nullptr;
  std::lock_guard held(queues.lock);
  queues.now_ns += time_ns;
  Py_RETURN_NONE;
}

// From now on, the device begins with what is launched so many nanoseconds later.
PyObject* set_latency(PyObject*, PyObject* argument) {
  std::lock_guard held(queues.lock);
  queues.latency_ns = PyLong_AsLongLong(argument);
  Py_RETURN_NONE;
}

// What traces add to the device's times.
PyObject* set_trace_offset(PyObject*, PyObject* argument) {
  planted_trace::offset_ns = PyLong_AsLongLong(argument);
  Py_RETURN_NONE;
}

// From now on, what is put into queues is captured into a graph, or not any more.
PyObject* capture(PyObject*, PyObject* does) {
  std::lock_guard held(queues.lock);
  queues.captures = does == Py_True;
  Py_RETURN_NONE;
}

// From now on, another stream is captured, or not any more.
PyObject* capture_elsewhere(PyObject*, PyObject* does) {
  std::lock_guard held(queues.lock);
  queues.captures_elsewhere = does == Py_True;
  Py_RETURN_NONE;
}

// From now on, the device refuses events, or not any more.
PyObject* fail(PyObject*, PyObject* does) {
  std::lock_guard held(queues.lock);
  queues.fails = does == Py_True;
  Py_RETURN_NONE;
}

PyObject* is_capturing(PyObject*, PyObject*) {
  queues.asked_whether_captured++;
  return PyBool_FromLong(queues.captures);
}

// From now on, each event takes so many nanoseconds in its queue.
PyObject* set_record_cost(PyObject*, PyObject* argument) {
  std::lock_guard held(queues.lock);
  queues.record_ns = PyLong_AsLongLong(argument);
  Py_RETURN_NONE;
}

PyObject* state(PyObject*, PyObject*) {
  std::lock_guard held(queues.lock);
  const std::pair<const char*, int64_t> numbers[] = {
      {"ended_captures", queues.ended_captures}, {"now_ns", queues.now_ns},   {"waits", queues.waits},
      {"records", queues.records},               {"events", queues.events},   {"queries", queues.queries},
      {"asked_whether_captured", queues.asked_whether_captured}};
  PyObject* found = PyDict_New();
  for (auto [name, number] : numbers) {
    PyObject* value = PyLong_FromLongLong(number);
    PyDict_SetItemString(found, name, value);
    Py_DECREF(value);
  }
  return found;
}

// From now on, the allocator has no more than so many bytes in use.
PyObject* limit_memory(PyObject*, PyObject* argument) {
#if COUNTS_MEMORY
  Counting::instance().most_bytes = PyLong_AsLongLong(argument);
#endif
  Py_RETURN_NONE;
}

// From now on, the allocator does not report what it does, or does so again.
PyObject* keep_silent(PyObject*, PyObject* does) {
#if COUNTS_MEMORY
  Counting::instance().reports = does != Py_True;
#endif
  Py_RETURN_NONE;
}

PyObject* is_initialized(PyObject*, PyObject*) { return PyBool_FromLong(is_in_use); }

void drop_block(PyObject* capsule) {
  delete static_cast<c10::DataPtr*>(PyCapsule_GetPointer(capsule, nullptr));
}

// Bytes of the device, for as long as what is returned lives.
PyObject* allocate(PyObject*, PyObject* argument) {
  size_t bytes = PyLong_AsSize_t(argument);
  if (PyErr_Occurred()) return nullptr;
  is_in_use = true;
  if (!COUNTS_MEMORY) Py_RETURN_NONE;
  return PyCapsule_New(new c10::DataPtr(c10::GetAllocator(kType)->allocate(bytes)), nullptr, &drop_block);
}

PyMethodDef methods[] = {{"add_work", add_work, METH_O, nullptr},
                         {"pass_time", pass_time, METH_O, nullptr},
                         {"set_latency", set_latency, METH_O, nullptr},
                         {"set_trace_offset", set_trace_offset, METH_O, nullptr},
                         {"capture", capture, METH_O, nullptr},
                         {"capture_elsewhere", capture_elsewhere, METH_O, nullptr},
                         {"fail", fail, METH_O, nullptr},
                         {"set_record_cost", set_record_cost, METH_O, nullptr},
                         {"is_capturing", is_capturing, METH_NOARGS, nullptr},
                         {"state", state, METH_NOARGS, nullptr},
                         {"limit_memory", limit_memory, METH_O, nullptr},
                         {"keep_silent", keep_silent, METH_O, nullptr},
                         {"is_initialized", is_initialized, METH_NOARGS, nullptr},
                         {"allocate", allocate, METH_O, nullptr},
                         {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "planted_device", nullptr, -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit_planted_device() {
  static Guard guard;
  static c10::impl::DeviceGuardImplRegistrar registered(kType, &guard);
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  planted_trace::register_with_torch();
#if COUNTS_MEMORY
  c10::SetAllocator(kType, &Counting::instance());
#endif
  PyObject* made = PyModule_Create(&definition);
  if (made) PyModule_AddIntConstant(made, "has_traces", HAS_TRACES);
  return made;
}
