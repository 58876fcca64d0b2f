// Devices and what they can do, errors, and the driver's own names for both.

#include "planted.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

using namespace planted;

API Status p_cudaGetDeviceCount(int* count) {
  *count = int(settings.devices);
  return kOk;
}
API Status p_cudaGetDevice(int* device) {
  *device = current_device;
  return kOk;
}
API Status p_cudaSetDevice(int device) {
  if (device < 0 || device >= settings.devices) return fail(kBadDevice);
  current_device = device;
  Lock lock(mutex);
  use_device();
  return kOk;
}
API Status p_cudaDriverGetVersion(int* version) {
  *version = PLANTED_CUDA;
  return kOk;
}
API Status p_cudaRuntimeGetVersion(int* version) {
  *version = PLANTED_CUDA;
  return kOk;
}
API Status p_cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return kOk;
}
API Status p_cudaDeviceEnablePeerAccess(int, unsigned) { return kOk; }
API Status p_cudaDeviceGetPCIBusId(char* out, int size, int device) {
  snprintf(out, size_t(size), "0000:%02x:00.0", device + 1);
  return kOk;
}
API Status p_cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0, *greatest = -5;
  return kOk;
}

// By numbers of attributes, as CUDA has them: those of a card of compute capability 9.0.
Status planted::p_cudaDeviceGetAttribute(int* value, int attribute, int) {
  static const auto& known = *new std::map<int, int>{
      {1, 1024},  {2, 1024},         {3, 1024},      {4, 64},      {5, 2147483647}, {6, 65535},   {7, 65535},
      {8, 49152}, {9, 65536},        {10, 32},       {12, 65536},  {13, 1000000},  // clock: 1 GHz, in kHz
      {16, 132},  {38, 52428800},    {39, 2048},     {75, 9},      {76, 0},         {81, 233472}, {82, 65536},
      {97, 232448}, {106, 32},       {115, 1},  // memory pools
  };
  auto found = known.find(attribute);
  *value = found == known.end() ? 0 : found->second;
  return kOk;
}

// A `cudaDeviceProp`, whose fields from `multiProcessorCount` on lie elsewhere since CUDA 13.
static Status properties(char* out, int device, bool is_12) {
  if (device < 0 || device >= settings.devices) return fail(kBadDevice);
  memset(out, 0, 1008);
  auto number = [&](int at_12, int at_13, int value) { memcpy(out + (is_12 ? at_12 : at_13), &value, sizeof value); };
  auto size = [&](int at_12, int at_13, size_t value) { memcpy(out + (is_12 ? at_12 : at_13), &value, sizeof value); };
  strcpy(out, "Planted GPU");
  out[256] = char(device + 1);  // uuid
  size(288, 288, size_t(settings.total_bytes));
  size(296, 296, 49152);        // sharedMemPerBlock
  number(304, 304, 65536);      // regsPerBlock
  number(308, 308, 32);         // warpSize
  number(320, 320, 1024);       // maxThreadsPerBlock
  number(324, 324, 1024), number(328, 328, 1024), number(332, 332, 64);             // maxThreadsDim
  number(336, 336, 2147483647), number(340, 340, 65535), number(344, 344, 65535);  // maxGridSize
  if (is_12) number(348, 348, 1000000);  // clockRate
  size(352, 352, 65536);                 // totalConstMem
  number(360, 360, 9), number(364, 364, 0);  // compute capability
  size(368, 368, 512);                       // textureAlignment
  number(388, 384, 132);        // multiProcessorCount
  number(576, 560, 1);          // concurrentKernels
  number(584, 568, device + 1); // pciBusID
  number(600, 584, 2);          // asyncEngineCount
  number(604, 588, 1);          // unifiedAddressing
  number(612, 592, 5120);       // memoryBusWidth
  number(616, 596, 52428800);   // l2CacheSize
  number(624, 604, 2048);       // maxThreadsPerMultiProcessor
  size(640, 624, 233472);       // sharedMemPerMultiprocessor
  number(648, 632, 65536);      // regsPerMultiprocessor
  size(696, 672, 232448);       // sharedMemPerBlockOptin
  number(712, 688, 32);         // maxBlocksPerMultiProcessor
  return kOk;
}
API Status p_cudaGetDeviceProperties(char* out, int device) { return properties(out, device, /*is_12=*/false); }
API Status p_cudaGetDeviceProperties_v2(char* out, int device) { return properties(out, device, /*is_12=*/true); }

API Status p_cudaDeviceSynchronize() {
  Lock lock(mutex);
  Shown shown(kShowDeviceSync);
  if (settings.failing) return fail(kFailed);
  if (ends_captures("cudaDeviceSynchronize")) return fail(kCaptureUnsupported);
  wait_until(default_stream(current_device)->end_ns);
  for (Stream* stream : state.streams)
    if (stream->device == current_device) wait_until(stream->end_ns);
  return kOk;
}

API Status p_cudaGetLastError() {
  Status error = last_error;
  last_error = kOk;
  return error;
}
API Status p_cudaPeekAtLastError() { return last_error; }
const char* planted::p_cudaGetErrorString(Status error) {
  switch (error) {
    case kOk: return "no error";
    case kInvalid: return "invalid argument";
    case kNoMemory: return "out of memory";
    case kBadHandle: return "invalid resource handle";
    case kNotReady: return "device not ready";
    case kNotSupported: return "operation not supported";
    case kCaptureUnsupported: return "operation not permitted when stream is capturing";
    case kCaptureInvalidated: return "operation failed due to a previous error during capture";
    case kCapturedEvent: return "operation not permitted on an event last recorded in a capturing stream";
    default: return "planted error";
  }
}
API const char* p_cudaGetErrorName(Status) { return "cudaErrorPlanted"; }
API Status p_cudaProfilerStart() { return kOk; }
API Status p_cudaProfilerStop() { return kOk; }

// The driver: a context is the number of its device, counted from 1.
static void* context_of(int device) { return reinterpret_cast<void*>(uintptr_t(device + 1)); }

API Status p_cuInit(unsigned) { return kOk; }
API Status p_cuDriverGetVersion(int* version) { return p_cudaDriverGetVersion(version); }
API Status p_cuDeviceGet(int* device, int index) {
  *device = index;
  return kOk;
}
API Status p_cuDeviceGetCount(int* count) { return p_cudaGetDeviceCount(count); }
API Status p_cuDeviceGetName(char* out, int size, int) {
  snprintf(out, size_t(size), "Planted GPU");
  return kOk;
}
API Status p_cuDeviceGetAttribute(int* value, int attribute, int device) {
  return p_cudaDeviceGetAttribute(value, attribute, device);
}
API Status p_cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* is_active) {
  Lock lock(mutex);
  *flags = 0, *is_active = state.in_use.count(device) > 0;
  return kOk;
}
API Status p_cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = context_of(device);
  return kOk;
}
API Status p_cuCtxGetCurrent(void** context) {
  Lock lock(mutex);
  *context = state.in_use.count(current_device) ? context_of(current_device) : nullptr;
  return kOk;
}
API Status p_cuCtxSetCurrent(void*) { return kOk; }
API Status p_cuCtxGetDevice(int* device) {
  *device = current_device;
  return kOk;
}
API Status p_cuCtxGetLimit(size_t* value, int) {
  *value = 0;
  return kOk;
}
API Status p_cuCtxSetLimit(int, size_t) { return kOk; }
API Status p_cuGetErrorString(Status error, const char** out) {
  *out = p_cudaGetErrorString(error);
  return kOk;
}
API Status p_cuLogsRegisterCallback(void*, void*, void** handle) {  // of messages: there are none
  *handle = nullptr;
  return kOk;
}
API Status p_cuLogsUnregisterCallback(void*) { return kOk; }
API Status p_cuThreadExchangeStreamCaptureMode(int* mode) { return p_cudaThreadExchangeStreamCaptureMode(mode); }
API Status p_cuStreamIsCapturing(void* handle, int* status) { return p_cudaStreamIsCapturing(handle, status); }

// NVML: how many devices there are, without using them, and which processes use one: none is known.
API Status p_nvmlInit() { return kOk; }
API Status p_nvmlInit_v2() { return kOk; }
API Status p_nvmlDeviceGetCount_v2(int* count) { return p_cudaGetDeviceCount(count); }
API Status p_nvmlDeviceGetHandleByPciBusId_v2(const char*, void** device) {
  *device = nullptr;
  return kOk;
}
API Status p_nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, void*) {
  *count = 0;
  return kOk;
}
// Functions that have to be there, and are not to be called.
#define UNWRITTEN(name) \
  API Status p_##name() { return planted_missing(#name, 3); }
UNWRITTEN(nvmlDeviceGetGpuFabricInfoV)
UNWRITTEN(nvmlDeviceGetNvLinkRemoteDeviceType)
UNWRITTEN(nvmlDeviceGetNvLinkRemotePciInfo_v2)
UNWRITTEN(nvmlSystemGetCudaDriverVersion_v2)

// Functions of the driver that torch asks for by name, before it is known whether it calls them: each
// that nobody wrote has a place here, which says its name once it is called.
constexpr int kMostUnknown = 64;
static std::vector<std::string>& unknown = *new std::vector<std::string>;
template <int place>
static Status call_unknown() {
  return planted_missing(unknown[place].c_str(), kNotSupported);
}
template <int... places>
static void* unknown_at(size_t place, std::integer_sequence<int, places...>) {
  static Status (*const all[])() = {call_unknown<places>...};
  return reinterpret_cast<void*>(all[place]);
}
static void* function_of_driver(const char* name) {
  if (void* found = dlsym(RTLD_DEFAULT, (std::string("p_") + name).c_str())) return found;
  Lock lock(mutex);
  auto known = std::find(unknown.begin(), unknown.end(), name);
  size_t place = size_t(known - unknown.begin());
  if (place == kMostUnknown) return nullptr;
  if (known == unknown.end()) unknown.push_back(name);
  return unknown_at(place, std::make_integer_sequence<int, kMostUnknown>());
}
API Status p_cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long, int* status) {
  *function = function_of_driver(name);
  if (status) *status = 0;
  return kOk;
}
API Status p_cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long, int* status) {
  return p_cudaGetDriverEntryPointByVersion(name, function, 0, 0, status);
}
