// Memory of the devices, which is the host's: blocks, pools, pages that are mapped, and copies.

#include "planted.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace planted {

enum { kOnHost = 1, kOnDevice = 2 };

// The block with this address in it; null: there is none.
const Block* block_of(const void* address) {
  auto after = state.blocks.upper_bound(uintptr_t(address));
  if (after == state.blocks.begin()) return nullptr;
  auto found = std::prev(after);
  return uintptr_t(address) < found->first + found->second.bytes ? &found->second : nullptr;
}

// Addresses without memory, until they are written to.
static void* reserve(size_t bytes) {
  void* found = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return found == MAP_FAILED ? nullptr : found;
}
static bool fits(int device, size_t bytes) {
  int64_t left = settings.total_bytes - state.used_bytes[size_t(device)];
  return left >= 0 && bytes <= size_t(left);
}
static Status take(void** out, size_t bytes, int type) {
  use_device();
  bytes = std::max<size_t>(bytes, 1);
  if (type == kOnDevice && !fits(current_device, bytes)) return fail(kNoMemory);
  *out = reserve(bytes);
  if (*out == nullptr) return fail(kNoMemory);
  state.blocks[uintptr_t(*out)] = {bytes, current_device, type};
  if (type == kOnDevice) state.used_bytes[size_t(current_device)] += int64_t(bytes);
  return kOk;
}
static Status give_back(void* address) {
  if (address == nullptr) return kOk;
  auto found = state.blocks.find(uintptr_t(address));
  if (found == state.blocks.end()) return fail(kInvalid);
  const Block& block = found->second;
  if (block.type == kOnDevice) state.used_bytes[size_t(block.device)] -= int64_t(block.bytes);
  munmap(address, block.bytes);
  state.blocks.erase(found);
  return kOk;
}

}  // namespace planted

using namespace planted;

API Status p_cudaMalloc(void** out, size_t bytes) {
  Lock lock(mutex);
  Shown shown(kShowMalloc);
  if (settings.failing) return fail(kFailed);
  if (ends_captures("cudaMalloc")) return fail(kCaptureUnsupported);
  return take(out, bytes, kOnDevice);
}
API Status p_cudaFree(void* address) {
  Lock lock(mutex);
  use_device();
  if (address && ends_captures("cudaFree")) return fail(kCaptureUnsupported);
  return give_back(address);
}
API Status p_cudaMallocAsync(void** out, size_t bytes, void*) {
  Lock lock(mutex);
  return take(out, bytes, kOnDevice);
}
API Status p_cudaFreeAsync(void* address, void*) {
  Lock lock(mutex);
  return give_back(address);
}
API Status p_cudaMemGetInfo(size_t* free, size_t* total) {
  Lock lock(mutex);
  use_device();
  *total = size_t(settings.total_bytes);
  *free = size_t(settings.total_bytes - state.used_bytes[size_t(current_device)]);
  return kOk;
}
API Status p_cudaHostAlloc(void** out, size_t bytes, unsigned) {
  Lock lock(mutex);
  if (ends_captures("cudaHostAlloc")) return fail(kCaptureUnsupported);
  return take(out, bytes, kOnHost);
}
API Status p_cudaFreeHost(void* address) {
  Lock lock(mutex);
  return give_back(address);
}
API Status p_cudaHostRegister(void* address, size_t bytes, unsigned) {
  Lock lock(mutex);
  state.blocks[uintptr_t(address)] = {bytes, current_device, kOnHost};
  return kOk;
}
API Status p_cudaHostUnregister(void* address) {
  Lock lock(mutex);
  state.blocks.erase(uintptr_t(address));
  return kOk;
}
API Status p_cudaPointerGetAttributes(void* out, const void* address) {
  struct {
    int type, device;
    const void *on_device, *on_host;
  } found{0, -2, nullptr, address};
  Lock lock(mutex);
  if (const Block* block = block_of(address))
    found = {block->type, block->device, address, block->type == kOnHost ? address : nullptr};
  memcpy(out, &found, sizeof found);
  return kOk;
}
API Status p_cuPointerGetAttribute(void* out, int attribute, const void* address) {
  Lock lock(mutex);
  const Block* block = block_of(address);
  const int device = block ? block->device : 0;
  const bool is_address = attribute == 3;  // else the number of its device
  is_address ? memcpy(out, &address, sizeof address) : memcpy(out, &device, sizeof device);
  return block ? kOk : kInvalid;
}

// Copies: the only work that does something.

static Status copy(void* to, const void* from, size_t bytes, void* handle, bool waits) {
  Lock lock(mutex);
  Shown shown(kShowMemcpy);
  if (waits && ends_captures("cudaMemcpy")) return fail(kCaptureUnsupported);
  Stream* stream = stream_of(handle);
  if (Status error = work(stream, "memcpy", planted_ns("memcpy", settings.copy_ns), /*is_kernel=*/false)) return error;
  if (stream->capture) return kOk;
  memmove(to, from, bytes);
  bool is_pageable = block_of(to) == nullptr;
  if (waits || is_pageable) wait_until(stream->end_ns);
  return kOk;
}
API Status p_cudaMemcpy(void* to, const void* from, size_t bytes, int) {
  return copy(to, from, bytes, nullptr, /*waits=*/true);
}
API Status p_cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, void* stream) {
  return copy(to, from, bytes, stream, /*waits=*/false);
}
API Status p_cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, void* stream) {
  return copy(to, from, bytes, stream, /*waits=*/false);
}
API Status p_cudaMemcpy2DAsync(char* to, size_t to_pitch, const char* from, size_t from_pitch, size_t width, size_t height, int, void* stream) {
  if (height == 0) return kOk;
  for (size_t row = 1; row < height; row++) memmove(to + row * to_pitch, from + row * from_pitch, width);
  return copy(to, from, width, stream, /*waits=*/false);
}
API Status p_cudaMemsetAsync(void* address, int value, size_t bytes, void* handle) {
  Lock lock(mutex);
  Shown shown(kShowMemset);
  Stream* stream = stream_of(handle);
  if (Status error = work(stream, "memset", planted_ns("memset", settings.copy_ns), /*is_kernel=*/false)) return error;
  if (!stream->capture) memset(address, value, bytes);
  return kOk;
}
API Status p_cudaMemset(void* address, int value, size_t bytes) { return p_cudaMemsetAsync(address, value, bytes, nullptr); }

// Pools, and handles for other processes

API Status p_cudaDeviceGetDefaultMemPool(void** pool, int device) {
  *pool = reinterpret_cast<void*>(uintptr_t(device + 1));
  return kOk;
}
API Status p_cudaMemPoolSetAttribute(void*, int, void*) { return kOk; }
API Status p_cudaMemPoolGetAttribute(void*, int, uint64_t* value) {
  *value = 0;
  return kOk;
}
API Status p_cudaMemPoolSetAccess(void*, const void*, size_t) { return kOk; }
API Status p_cudaMemPoolTrimTo(void*, size_t) { return kOk; }
API Status p_cudaIpcGetMemHandle(void* handle, void* address) {
  memset(handle, 0, 64);
  memcpy(handle, &address, sizeof address);
  return kOk;
}

// Pages of a device, which are mapped to reserved addresses: expandable segments

namespace {
struct Pages {
  size_t bytes;
  int device;
};
}  // namespace

API Status p_cuMemGetAllocationGranularity(size_t* bytes, const void*, int) {
  *bytes = 2 << 20;
  return kOk;
}
API Status p_cuMemAddressReserve(void** out, size_t bytes, size_t, void*, unsigned long long) {
  *out = reserve(bytes);
  return *out ? kOk : kNoMemory;
}
API Status p_cuMemAddressFree(void* address, size_t bytes) {
  munmap(address, bytes);
  return kOk;
}
// properties: type, kinds of handles, and of the place its type and number.
API Status p_cuMemCreate(void** out, size_t bytes, const int* properties, unsigned long long) {
  Lock lock(mutex);
  int device = properties[3];
  if (device < 0 || device >= settings.devices) return kInvalid;
  if (!fits(device, bytes)) return kNoMemory;
  state.used_bytes[size_t(device)] += int64_t(bytes);
  *out = new Pages{bytes, device};
  return kOk;
}
API Status p_cuMemRelease(void* handle) {
  Lock lock(mutex);
  Pages* pages = static_cast<Pages*>(handle);
  state.used_bytes[size_t(pages->device)] -= int64_t(pages->bytes);
  delete pages;
  return kOk;
}
API Status p_cuMemMap(void* address, size_t bytes, size_t, void* handle, unsigned long long) {
  Lock lock(mutex);
  state.blocks[uintptr_t(address)] = {bytes, static_cast<Pages*>(handle)->device, kOnDevice};
  return kOk;
}
API Status p_cuMemUnmap(void* address, size_t) {
  Lock lock(mutex);
  state.blocks.erase(uintptr_t(address));
  return kOk;
}
API Status p_cuMemSetAccess(void*, size_t, const void*, size_t) { return kOk; }

// A variable of device code.
API Status p_cudaGetSymbolAddress(void** out, const void* symbol) {
  static auto& known = *new std::map<const void*, void*>;
  Lock lock(mutex);
  void*& place = known[symbol];
  if (place == nullptr) place = calloc(1, 1 << 16);
  *out = place;
  return kOk;
}
API Status p_cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, int) { return kOk; }
API Status p_cudaMemcpyToSymbolAsync(const void*, const void*, size_t, size_t, int, void*) { return kOk; }
