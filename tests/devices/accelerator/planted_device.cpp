// A device that is not CUDA, for torch's generic interfaces: a PrivateUse1 backend with events, an
// allocator that counts and reports, and operators that the CPU computes.
//
// Nothing here looks at a clock. There is one "now" of the host, which tests move; a
// device is a queue whose end lies at `ends_ns`, and work that is put into it begins
// there or now, whichever is later. Waiting for the device moves the host's now.

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/api/include/torch/version.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>

// torch asks devices of all kinds what they have allocated.
#define COUNTS_MEMORY (TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR >= 209)

namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
constexpr int kDevices = 2;

struct Event {
  int64_t time_ns;
};

std::mutex queues;                        // guards all but memory
std::array<int64_t, kDevices> ends_ns{};  // of each device's only stream

// What tests read, and set.
int64_t now_ns = 0, waits = 0, records = 0, events = 0, queries = 0;
int64_t asked_whether_captured = 0;  // the guard, or Python
int64_t captures = 0;                // 1: what is put into queues is captured into a graph
int64_t fails = 0;                   // 1: the device refuses events
int64_t is_silent = 0;               // 1: the allocator does not report what it does
int64_t is_in_use = 0;
thread_local c10::DeviceIndex current_device = 0;

void wait_until(int64_t time_ns) {
  if (time_ns <= now_ns) return;
  waits++;
  now_ns = time_ns;
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
  c10::Stream getStream(c10::Device device) const override { return getDefaultStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, 0);
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    std::lock_guard held(queues);
    TORCH_CHECK(!captures, "an event was recorded while a graph is captured");
    TORCH_CHECK(!fails, "the device has failed");
    if (*event == nullptr) {
      *event = new Event{0};
      events++;
    }
    records++;
    static_cast<Event*>(*event)->time_ns = std::max(now_ns, ends_ns[stream.device_index()]);
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  // Not an override before torch 2.13: there, Python is asked.
  virtual bool isStreamCapturing(const c10::Stream&) const {
    asked_whether_captured++;
    return captures;
  }
  bool queryStream(const c10::Stream& stream) const override {
    TORCH_CHECK(!captures, "a stream was asked while a graph is captured");
    std::lock_guard held(queues);
    queries++;
    return ends_ns[stream.device_index()] <= now_ns;
  }
  bool queryEvent(void* event) const override {
    TORCH_CHECK(!captures, "an event was asked while a graph is captured");
    std::lock_guard held(queues);
    queries++;
    return event == nullptr || static_cast<Event*>(event)->time_ns <= now_ns;
  }
  void synchronizeEvent(void* event) const override {
    std::lock_guard held(queues);
    wait_until(static_cast<Event*>(event)->time_ns);
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    std::lock_guard held(queues);
    wait_until(ends_ns[stream.device_index()]);
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    std::lock_guard held(queues);
    wait_until(ends_ns[index]);
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
using Allocator = c10::DeviceAllocator;
#else
using Allocator = c10::Allocator;
#endif

// Counts, and reports to torch's profiler, unless it is to be silent; what it hands out is memory of the host, in
// blocks of a multiple of 512 bytes.
struct Counting final : Allocator {
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
    if (!is_silent)
      c10::reportMemoryUsageToProfiler(address, bytes, level.allocated.current, level.reserved.current, device);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void*, const void*, size_t) const override {}
#if COUNTS_MEMORY
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
#endif
};

// Operators: those of the CPU compute them, on copies. Each result takes a block of the device.

using at::Tensor;

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> type, std::optional<at::Layout>,
             std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::OptionalDeviceGuard guard(device);
  auto* allocator = c10::GetAllocator(kType);
  return at::detail::empty_generic(size, allocator, kKeys, at::dtype_or_default(type), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> type,
                     std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  c10::OptionalDeviceGuard guard(device);
  auto* allocator = c10::GetAllocator(kType);
  return at::detail::empty_strided_generic(size, stride, allocator, kKeys, at::dtype_or_default(type));
}

// The same numbers, as the host sees them: the device's memory is the host's.
Tensor on_host(const Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  on_host(to).copy_(on_host(from));
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) { return copy_from(from, to, false); }

Tensor& set_source(Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  return at::native::set_storage_cpu_(self, source, offset, size, stride);
}

void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack) { at::native::cpu_fallback(op, stack); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("view", at::native::view);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("set_.source_Storage_storage_offset", set_source);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>());
}

const c10::impl::DeviceGuardImplRegistrar guard_registered(kType, new Guard());
const bool rest_registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  c10::SetAllocator(kType, &Counting::instance());
  return true;
}();

}  // namespace

#define API extern "C" __attribute__((visibility("default")))

// A number of the above; null: there is no such one.
API int64_t* planted_number(const char* name) {
  static const std::map<std::string, int64_t*> numbers{
      {"now_ns", &now_ns},     {"waits", &waits},     {"records", &records},
      {"events", &events},     {"queries", &queries}, {"asked_whether_captured", &asked_whether_captured},
      {"captures", &captures}, {"fails", &fails},     {"is_silent", &is_silent},
      {"is_in_use", &is_in_use}};
  auto found = numbers.find(name);
  return found == numbers.end() ? nullptr : found->second;
}

// The current device works for so long.
API void planted_work(int64_t ns) {
  std::lock_guard held(queues);
  is_in_use = 1;
  int64_t& end_ns = ends_ns[current_device];
  end_ns = std::max(end_ns, now_ns) + ns;
}
