// What all of the planted CUDA runtime shares: its memory is the host's, and its kernels take planted
// time and compute nothing. Stub libraries (see stubs.py) call the function `p_NAME` for CUDA's `NAME`.

#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

namespace planted {

using Status = int;  // cudaError_t, CUresult, cublasStatus_t, ...

enum : Status {
  kOk = 0,
  kInvalid = 1,
  kNoMemory = 2,
  kBadDevice = 101,
  kBadHandle = 400,
  kNotReady = 600,
  kFailed = 700,  // an illegal address: the device is lost
  kNotSupported = 801,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
  kCaptureUnjoined = 904,
  kCaptureIsolation = 905,
  kCapturedEvent = 907,
};
enum CaptureMode { kGlobal = 0, kThreadLocal = 1, kRelaxed = 2 };

constexpr int kMaxDevices = 16;

// Settings, all of them whole numbers: tests set them by name (see clock.cpp), and the environment
// by `PLANTED_` and the name in capitals.
struct Settings {
  int64_t default_ns = 0;   // time of a kernel
  int64_t gemm_ns = 0;      // time of a product, a convolution
  int64_t copy_ns = 0;      // time of a copy, of filling memory
  int64_t record_ns = 0;    // what recording an event takes the stream
  int64_t latency_ns = 0;   // between a launch and the begin of its kernel
  int64_t real_clock = 0;   // 1: the clock of the host is the machine's, as Kineto needs it
  int64_t total_bytes = int64_t(80) << 30;
  int64_t devices = 2;
  int64_t failing = 0;      // 1: every call fails, as after an illegal address
  int64_t verbose = 0;      // 1: says what ends a capture
};
inline Settings& settings = *new Settings;

// One lock for everything: threads of the engine launch, too.
inline std::recursive_mutex& mutex = *new std::recursive_mutex;
using Lock = std::lock_guard<std::recursive_mutex>;

struct Stream;

struct GraphNode {
  std::string name;
  int64_t start_ns, ns;
};
struct Graph {
  int64_t id = 0, ns = 0;
  bool is_invalid = false;
  std::vector<GraphNode> nodes;
};
struct Capture {
  Graph* graph;
  int mode;
  std::thread::id thread;
  Stream* origin;
  std::set<Stream*> joined;
};
// A queue of work: all of it is done at `end_ns`.
struct Stream {
  int device;
  int64_t id, end_ns = 0;
  int priority = 0;
  Capture* capture = nullptr;
  int64_t captured_ns = 0;  // how long what was captured takes
};
struct Event {
  int device;
  unsigned flags;
  bool is_recorded = false, is_captured = false;
  int64_t ns = 0;
  Capture* capture = nullptr;
  bool takes_times() const { return (flags & 2) == 0; }  // cudaEventDisableTiming
};
struct Block {
  size_t bytes;
  int device, type;  // type: 1 of the host, 2 of the device
};
// Work that a device was given, and when it does that.
struct Ran {
  std::string name;
  int device;
  int64_t stream, launched_ns, start_ns, end_ns;
  long thread;
};

struct State {
  std::vector<Stream*> default_streams;  // by device
  std::set<Stream*> streams;
  std::set<Event*> events;
  std::vector<Capture*> captures;
  std::map<uintptr_t, Block> blocks;
  std::vector<int64_t> used_bytes = std::vector<int64_t>(kMaxDevices);
  std::set<int> in_use;  // devices with a context
  std::unordered_map<const void*, std::string> kernels;  // by the host's function
  std::vector<std::pair<std::string, int64_t>> plans;    // time of kernels with this in their name
  std::vector<Ran> log;
  std::map<std::string, int64_t> numbers;  // "waits", "violations", ...
  std::map<std::string, int64_t> missing;  // functions that nobody wrote, and how often they were called
  int64_t next_id = 1;
};
inline State& state = *new State;

inline thread_local int current_device = 0;
inline thread_local Status last_error = kOk;
inline thread_local int capture_mode = kGlobal;  // of this thread's unsafe calls
inline thread_local int64_t next_ns = -1;        // of the next kernel that this thread launches

inline Status fail(Status error) { return last_error = error; }
inline void use_device() { state.in_use.insert(current_device); }

// clock.cpp
int64_t now();
int64_t monotonic_ns();
void wait_until(int64_t ns);

// streams.cpp
Stream* default_stream(int device);
Stream* stream_of(void* handle);  // null: there is none
bool ends_captures(const char* call);

// kernels.cpp
int64_t begin_ns(const Stream& stream);
Status work(Stream* stream, const std::string& name, int64_t ns, bool is_kernel);
int64_t planted_ns(const std::string& name, int64_t by_default);

// memory.cpp
const Block* block_of(const void* address);

// devices.cpp
API Status p_cudaDeviceGetAttribute(int* value, int attribute, int device);
API const char* p_cudaGetErrorString(Status error);

// streams.cpp
API Status p_cudaThreadExchangeStreamCaptureMode(int* mode);
API Status p_cudaStreamIsCapturing(void* handle, int* status);

// cupti.cpp: a call of the runtime that Kineto shows, while this lives. The caller has the lock.
class Shown {
 public:
  explicit Shown(int call);
  Shown(const Shown&) = delete;
  ~Shown();

 private:
  int call_;
  uint64_t began_;
  uint32_t before_;
};
void show_kernel(const std::string& name, const Stream& stream, int64_t start_ns, int64_t end_ns, uint64_t node = 0);

//: Numbers of calls, as CUPTI has them.
enum { kShowMalloc = 20, kShowMemcpy = 41, kShowMemset = 51, kShowStreamSync = 131, kShowStreamQuery = 132,
       kShowRecord = 135, kShowEventSync = 137, kShowEventQuery = 138, kShowElapsed = 139, kShowDeviceSync = 165,
       kShowLaunch = 211, kShowGraphLaunch = 311, kShowIsCapturing = 317 };

}  // namespace planted

extern "C" __attribute__((visibility("default"))) planted::Status planted_missing(const char* name, planted::Status code);
