// CUPTI: what torch.profiler's Kineto hears of calls of the runtime and of kernels, as records in slots
// of 256 bytes.

#include "planted.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <utility>
#include <deque>

namespace planted {

namespace {

enum { kKernels = 3, kRuntime = 5, kConcurrentKernels = 10, kCorrelations = 39 };
constexpr size_t kSlot = 256;

using Ask = void (*)(uint8_t**, size_t*, size_t*);
using Deliver = void (*)(void*, uint32_t, uint8_t*, size_t, size_t);
using Clock = uint64_t (*)();

struct Activities {
  std::set<int> kinds;   // that are enabled
  std::set<int> silent;  // calls of the runtime that are not to be shown
  Ask ask = nullptr;
  Deliver deliver = nullptr;
  Clock clock = nullptr;  // in which Kineto wants times
  int64_t clock_set_ns = 0;
  uint64_t clock_set_at = 0;
  double ratio = 0;  // its ticks in a nanosecond
  std::deque<std::array<char, kSlot>> pending;
  std::set<std::string> names;
  uint32_t last_correlation = 0;
  uint8_t* buffer = nullptr;  // the next one: Kineto asks for nothing if it was asked for none
  size_t size = 0;
};
Activities& activities = *new Activities;
thread_local uint32_t correlation = 0;
thread_local std::map<int, std::vector<uint64_t>> externals;

// How fast Kineto's clock is, found over the time that it is known.
void find_ratio() {
  constexpr int64_t kEnough = 20000000;
  if (monotonic_ns() - activities.clock_set_ns < kEnough) {
    timespec pause{0, kEnough};
    nanosleep(&pause, nullptr);
  }
  double took_ns = double(monotonic_ns() - activities.clock_set_ns);
  activities.ratio = double(activities.clock() - activities.clock_set_at) / took_ns;
}
// Times of the host and of devices, by the clock that Kineto has. Those of the machine's clock are told from one
// moment on, so that kernels that follow each other do not overlap; of the other clock, all of a record by one reading.
class Times {
 public:
  uint64_t of(int64_t ns) const { return read_ + uint64_t(int64_t(double(ns - now_ns_) * ratio_)); }

 private:
  static uint64_t read() {
    if (activities.clock != nullptr) return activities.clock();
    timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return uint64_t(time.tv_sec) * 1000000000 + uint64_t(time.tv_nsec);
  }

  bool is_real_ = activities.clock != nullptr && settings.real_clock;
  double ratio_ = activities.clock != nullptr ? activities.ratio : 1.0;
  int64_t now_ns_ = is_real_ ? activities.clock_set_ns : now();
  uint64_t read_ = is_real_ ? activities.clock_set_at : read();
};

struct Record {
  std::array<char, kSlot>& slot = activities.pending.emplace_back();
  explicit Record(int kind) {
    slot.fill(0);
    put<int>(0, kind);
  }
  template <class T>
  void put(size_t at, T value) {
    memcpy(slot.data() + at, &value, sizeof value);
  }
};

}  // namespace

Shown::Shown(int call) : call_(call), began_(activities.kinds.empty() ? 0 : Times().of(now())), before_(correlation) {
  correlation = ++activities.last_correlation;
  if (!activities.buffer && activities.ask && !activities.kinds.empty()) {
    size_t most = 0;
    activities.ask(&activities.buffer, &activities.size, &most);
  }
  if (!activities.kinds.count(kCorrelations)) return;
  for (const auto& [kind, stack] : externals) {
    if (stack.empty()) continue;
    Record record(kCorrelations);
    record.put<int>(4, kind);
    record.put<uint64_t>(8, stack.back());
    record.put<uint32_t>(16, correlation);
  }
}
Shown::~Shown() {
  if (activities.kinds.count(kRuntime) && !activities.silent.count(call_)) {
    Record record(kRuntime);
    record.put<int>(4, call_);
    record.put<uint64_t>(8, began_);
    record.put<uint64_t>(16, Times().of(now()));
    record.put<uint32_t>(24, uint32_t(getpid()));
    record.put<uint32_t>(28, uint32_t(pthread_self()));
    record.put<uint32_t>(32, correlation);
  }
  correlation = before_;
}

// A `CUpti_ActivityKernel9` and later. node: its number in a graph; 0: it was launched by itself.
void show_kernel(const std::string& name, const Stream& stream, int64_t start_ns, int64_t end_ns, uint64_t node) {
  if (!activities.kinds.count(kConcurrentKernels) && !activities.kinds.count(kKernels)) return;
  Times times;
  Record record(kConcurrentKernels);
  record.put<uint16_t>(6, 32);  // registers
  record.put<uint64_t>(16, times.of(start_ns));
  record.put<uint64_t>(24, times.of(end_ns));
  record.put<uint64_t>(32, times.of(end_ns));
  record.put<uint32_t>(40, uint32_t(stream.device));
  record.put<uint32_t>(44, 1);  // context
  record.put<uint32_t>(48, uint32_t(stream.id + 7));
  for (size_t at = 52; at < 76; at += 4) record.put<int>(at, 1);  // grid and block
  record.put<uint32_t>(92, correlation);
  record.put<const char*>(104, activities.names.insert(name).first->c_str());
  record.put<uint64_t>(144, node);
}

}  // namespace planted

using namespace planted;

API Status p_cuptiGetVersion(unsigned* version) {
  *version = 26;
  return kOk;
}
API Status p_cuptiGetResultString(Status, const char** out) {
  *out = "planted";
  return kOk;
}
API Status p_cuptiGetCallbackName(int, uint32_t call, const char** out) {
  static const auto& names = *new std::map<uint32_t, const char*>{
      {kShowMalloc, "cudaMalloc_v3020"},
      {kShowMemcpy, "cudaMemcpyAsync_v3020"},
      {kShowMemset, "cudaMemsetAsync_v3020"},
      {kShowStreamSync, "cudaStreamSynchronize_v3020"},
      {kShowStreamQuery, "cudaStreamQuery_v3020"},
      {kShowRecord, "cudaEventRecord_v3020"},
      {kShowEventSync, "cudaEventSynchronize_v3020"},
      {kShowEventQuery, "cudaEventQuery_v3020"},
      {kShowElapsed, "cudaEventElapsedTime_v3020"},
      {kShowDeviceSync, "cudaDeviceSynchronize_v3020"},
      {kShowLaunch, "cudaLaunchKernel_v7000"},
      {kShowGraphLaunch, "cudaGraphLaunch_v10000"},
      {kShowIsCapturing, "cudaStreamIsCapturing_v10000"},
  };
  auto found = names.find(call);
  *out = found == names.end() ? "planted" : found->second;
  return kOk;
}
API Status p_cuptiActivityRegisterCallbacks(Ask ask, Deliver deliver) {
  Lock lock(mutex);
  activities.ask = ask, activities.deliver = deliver;
  return kOk;
}
API Status p_cuptiActivityRegisterTimestampCallback(Clock clock) {
  Lock lock(mutex);
  activities.clock = clock;
  activities.clock_set_ns = monotonic_ns();
  activities.clock_set_at = clock();
  return kOk;
}
API Status p_cuptiActivityEnable(int kind) {
  Lock lock(mutex);
  activities.kinds.insert(kind);
  if (activities.clock) find_ratio();
  return kOk;
}
API Status p_cuptiActivityDisable(int kind) {
  Lock lock(mutex);
  activities.kinds.erase(kind);
  return kOk;
}
API Status p_cuptiActivityEnableRuntimeApi(int call, uint8_t is_shown) {
  Lock lock(mutex);
  if (is_shown)
    activities.silent.erase(call);
  else
    activities.silent.insert(call);
  return kOk;
}
API Status p_cuptiActivityEnableDriverApi(int, uint8_t) { return kOk; }
API Status p_cuptiActivityEnableCudaEventDeviceTimestamps(uint8_t) { return kOk; }
API Status p_cuptiActivitySetAttribute(int, size_t*, void*) { return kOk; }
API Status p_cuptiActivityGetNumDroppedRecords(void*, uint32_t, size_t* count) {
  *count = 0;
  return kOk;
}
API Status p_cuptiActivityPushExternalCorrelationId(int kind, uint64_t id) {
  externals[kind].push_back(id);
  return kOk;
}
API Status p_cuptiActivityPopExternalCorrelationId(int kind, uint64_t* id) {
  auto& stack = externals[kind];
  if (stack.empty()) return 19;  // CUPTI_ERROR_QUEUE_EMPTY
  if (id) *id = stack.back();
  stack.pop_back();
  return kOk;
}
API Status p_cuptiActivityFlushAll(unsigned) {
  std::deque<std::array<char, kSlot>> all;
  {
    Lock lock(mutex);
    all.swap(activities.pending);
  }
  while (activities.ask && !all.empty()) {
    uint8_t* buffer = nullptr;
    size_t size = 0, most = 0, used = 0;
    {
      Lock lock(mutex);
      std::swap(buffer, activities.buffer);
      size = activities.size;
    }
    if (!buffer) activities.ask(&buffer, &size, &most);
    for (; !all.empty() && used + kSlot <= size; used += kSlot) {
      memcpy(buffer + used, all.front().data(), kSlot);
      all.pop_front();
    }
    activities.deliver(nullptr, 0, buffer, size, used);
    if (used == 0) break;
  }
  return kOk;
}
API Status p_cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid, uint8_t** record) {
  uint8_t* next = *record ? *record + kSlot : buffer;
  if (next + kSlot > buffer + valid) return 12;  // CUPTI_ERROR_MAX_LIMIT_REACHED
  *record = next;
  return kOk;
}
API Status p_cuptiSubscribe(void** subscriber, void*, void*) {
  *subscriber = reinterpret_cast<void*>(1);
  return kOk;
}
API Status p_cuptiUnsubscribe(void*) { return kOk; }
API Status p_cuptiEnableCallback(unsigned, void*, int, int) { return kOk; }
API Status p_cuptiEnableDomain(unsigned, void*, int) { return kOk; }
API Status p_cuptiFinalize() { return kOk; }
