// Kernels, and the libraries whose functions launch some: cuBLAS, cuDNN, cuSPARSE, cuSOLVER. A kernel
// takes planted time and computes nothing.

#include "planted.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace planted {

namespace {
struct Dim3 {
  unsigned x, y, z;
};
struct Configuration {
  Dim3 grid, block;
  size_t shared;
  void* stream;
};
thread_local std::vector<Configuration> configurations;
}  // namespace

// What the next kernel takes: as said by `planted_next`, by a plan for its name, or by a setting.
int64_t planted_ns(const std::string& name, int64_t by_default) {
  if (next_ns >= 0) return std::exchange(next_ns, -1);
  for (auto plan = state.plans.rbegin(); plan != state.plans.rend(); ++plan)
    if (name.find(plan->first) != std::string::npos) return plan->second;
  return by_default;
}

// When what a stream is given now begins.
int64_t begin_ns(const Stream& stream) { return std::max(stream.end_ns, now() + settings.latency_ns); }

// Gives a stream something to do for a time. The caller has the lock.
Status work(Stream* stream, const std::string& name, int64_t ns, bool is_kernel) {
  if (stream == nullptr) return fail(kBadHandle);
  use_device();
  if (settings.failing) return fail(kFailed);
  if (stream->capture) {
    stream->capture->graph->nodes.push_back({name, stream->captured_ns, ns});
    stream->captured_ns += ns;
    return kOk;
  }
  int64_t start_ns = begin_ns(*stream);
  stream->end_ns = start_ns + ns;
  if (is_kernel) show_kernel(name, *stream, start_ns, stream->end_ns);
  state.log.push_back({name, stream->device, stream->id, now(), start_ns, stream->end_ns, long(gettid())});
  return kOk;
}

// `torch.cuda._sleep(n)` launches this one: it takes n ns.
static bool is_sleep(const std::string& name) { return name.find("spin_kernel") != std::string::npos; }

static Status launch(const void* function, void** arguments, void* handle) {
  Lock lock(mutex);
  Shown shown(kShowLaunch);
  auto found = state.kernels.find(function);
  std::string name = found == state.kernels.end() ? "(unknown kernel)" : found->second;
  Stream* stream = stream_of(handle);
  if (stream && stream->device != current_device) return fail(kBadHandle);
  int64_t ns = is_sleep(name) ? *static_cast<int64_t*>(arguments[0]) : planted_ns(name, settings.default_ns);
  return work(stream, name, ns, /*is_kernel=*/true);
}

// A kernel of a library's: a product of matrices, a convolution.
static Status library_kernel(void* stream, const char* name) {
  Lock lock(mutex);
  Shown shown(kShowLaunch);
  return work(stream_of(stream), name, planted_ns(name, settings.gemm_ns), /*is_kernel=*/true);
}

}  // namespace planted

using namespace planted;

API void** p___cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
API void p___cudaRegisterFatBinaryEnd(void**) {}
API void p___cudaUnregisterFatBinary(void**) {}
API char p___cudaInitModule(void**) { return 1; }
API void p___cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
API void p___cudaRegisterFunction(void**, const char* of_host, char*, const char* name, int, void*, void*, void*, void*, int*) {
  Lock lock(mutex);
  state.kernels[of_host] = name;
}
API unsigned p___cudaPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared, void* stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}
API Status p___cudaPopCallConfiguration(Dim3* grid, Dim3* block, size_t* shared, void** stream) {
  if (configurations.empty()) return kInvalid;
  const Configuration& last = configurations.back();
  *grid = last.grid, *block = last.block, *shared = last.shared, *stream = last.stream;
  configurations.pop_back();
  return kOk;
}
API Status p___cudaGetKernel(const void** kernel, const void* of_host) {
  *kernel = of_host;
  return kOk;
}
API Status p_cudaLaunchKernel(const void* function, Dim3, Dim3, void** arguments, size_t, void* stream) {
  return launch(function, arguments, stream);
}
API Status p___cudaLaunchKernel(const void* function, Dim3, Dim3, void** arguments, size_t, void* stream) {
  return launch(function, arguments, stream);
}
API Status p_cudaLaunchCooperativeKernel(const void* function, Dim3, Dim3, void** arguments, size_t, void* stream) {
  return launch(function, arguments, stream);
}
// configuration: a `cudaLaunchConfig_t`.
API Status p_cudaLaunchKernelExC(const char* configuration, const void* function, void** arguments) {
  return launch(function, arguments, *reinterpret_cast<void* const*>(configuration + 32));
}
// A `cudaFuncAttributes`.
API Status p_cudaFuncGetAttributes(char* out, const void*) {
  const int from_threads[] = {1024, 32, 90, 90, 0, 232448 - 1024};  // threads, registers, versions, shared memory
  memset(out, 0, 48);
  memcpy(out + 24, from_threads, sizeof from_threads);
  return kOk;
}
// The driver: kernels that a program has compiled itself, as Triton does. A function is its name, and
// nobody reads the code.
API Status p_cuModuleLoadData(void** module, const void*) {
  static char loaded;
  *module = &loaded;
  return kOk;
}
API Status p_cuModuleLoad(void** module, const char*) { return p_cuModuleLoadData(module, nullptr); }
API Status p_cuModuleUnload(void*) { return kOk; }
API Status p_cuModuleGetFunction(void** out, void*, const char* name) {
  Lock lock(mutex);
  *out = new char;  // for good: programs do not unload
  state.kernels[*out] = name;
  return kOk;
}
API Status p_cuLaunchKernel(const void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            void* stream, void** arguments, void**) {
  return launch(function, arguments, stream);
}
API Status p_cuLaunchKernelEx(const char* configuration, const void* function, void** arguments, void**) {
  return launch(function, arguments, *reinterpret_cast<void* const*>(configuration + 32));
}
API Status p_cuFuncGetAttribute(int* value, int attribute, const void*) {
  *value = attribute == 0 ? 1024 : attribute == 4 ? 32 : 0;  // threads in a block; registers
  return kOk;
}
API Status p_cuFuncSetAttribute(const void*, int, int) { return kOk; }
API Status p_cuFuncSetCacheConfig(const void*, int) { return kOk; }
API Status p_cudaFuncSetAttribute(const void*, int, int) { return kOk; }
API Status p_cudaFuncSetCacheConfig(const void*, int) { return kOk; }
API Status p_cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* count, const void*, int, size_t) {
  *count = 2;
  return kOk;
}
API Status p_cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* count, const void*, int, size_t, unsigned) {
  *count = 2;
  return kOk;
}

// Libraries: a handle of any of them knows its stream.

namespace {
struct Handle {
  void* stream = nullptr;
  int pointer_mode = 0, math_mode = 0;
};
}  // namespace

#define HANDLES(create, destroy, set_stream, get_stream)  \
  API Status p_##create(Handle** out) {                    \
    *out = new Handle;                                     \
    return kOk;                                            \
  }                                                        \
  API Status p_##destroy(Handle* handle) {                 \
    delete handle;                                         \
    return kOk;                                            \
  }                                                        \
  API Status p_##set_stream(Handle* handle, void* stream) { \
    handle->stream = stream;                               \
    return kOk;                                            \
  }                                                        \
  API Status p_##get_stream(Handle* handle, void** stream) { \
    *stream = handle->stream;                              \
    return kOk;                                            \
  }
HANDLES(cublasCreate_v2, cublasDestroy_v2, cublasSetStream_v2, cublasGetStream_v2)
HANDLES(cublasLtCreate, cublasLtDestroy, cublasLtSetStream, cublasLtGetStream)
HANDLES(cudnnCreate, cudnnDestroy, cudnnSetStream, cudnnGetStream)
HANDLES(cusparseCreate, cusparseDestroy, cusparseSetStream, cusparseGetStream)
HANDLES(cusolverDnCreate, cusolverDnDestroy, cusolverDnSetStream, cusolverDnGetStream)

// An object that says what is wanted, and that nobody looks into.
static Status describe(void** out) {
  *out = calloc(1, 256);
  return kOk;
}
static Status forget(void* description) {
  free(description);
  return kOk;
}

API Status p_cublasSetWorkspace_v2(Handle*, void*, size_t) { return kOk; }
API Status p_cublasSetMathMode(Handle* handle, int mode) {
  handle->math_mode = mode;
  return kOk;
}
API Status p_cublasGetMathMode(Handle* handle, int* mode) {
  *mode = handle->math_mode;
  return kOk;
}
API Status p_cublasSetPointerMode_v2(Handle* handle, int mode) {
  handle->pointer_mode = mode;
  return kOk;
}
API Status p_cublasGetPointerMode_v2(Handle* handle, int* mode) {
  *mode = handle->pointer_mode;
  return kOk;
}
API Status p_cublasSetEmulationStrategy(Handle*, int) { return kOk; }
API Status p_cublasGetVersion_v2(Handle*, int* version) {
  *version = PLANTED_CUDA * 10;
  return kOk;
}
#define KERNEL(name) \
  API Status p_##name(Handle* handle) { return library_kernel(handle->stream, #name); }
KERNEL(cublasSgemm_v2) KERNEL(cublasDgemm_v2) KERNEL(cublasCgemm_v2) KERNEL(cublasZgemm_v2)
KERNEL(cublasSgemmEx) KERNEL(cublasGemmEx) KERNEL(cublasGemmStridedBatchedEx) KERNEL(cublasSgemmStridedBatched)
KERNEL(cublasDgemmStridedBatched) KERNEL(cublasCgemmStridedBatched) KERNEL(cublasZgemmStridedBatched)
KERNEL(cublasSgemmBatched) KERNEL(cublasDgemmBatched) KERNEL(cublasSgemv_v2) KERNEL(cublasDgemv_v2)
KERNEL(cublasSdot_v2) KERNEL(cublasDdot_v2) KERNEL(cublasDotEx) KERNEL(cublasStrsm_v2) KERNEL(cublasStrsmBatched)

API size_t p_cublasLtGetVersion() { return PLANTED_CUDA * 10; }
API Status p_cublasLtMatmulDescCreate(void** out, int, int) { return describe(out); }
API Status p_cublasLtMatmulDescDestroy(void* description) { return forget(description); }
API Status p_cublasLtMatmulDescSetAttribute(void*, int, const void*, size_t) { return kOk; }
API Status p_cublasLtMatmulPreferenceCreate(void** out) { return describe(out); }
API Status p_cublasLtMatmulPreferenceDestroy(void* description) { return forget(description); }
API Status p_cublasLtMatmulPreferenceSetAttribute(void*, int, const void*, size_t) { return kOk; }
API Status p_cublasLtMatrixLayoutCreate(void** out, int, uint64_t, uint64_t, int64_t) { return describe(out); }
API Status p_cublasLtMatrixLayoutDestroy(void* description) { return forget(description); }
API Status p_cublasLtMatrixLayoutSetAttribute(void*, int, const void*, size_t) { return kOk; }
API Status p_cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, char* out, int* found) {
  memset(out, 0, 96);
  *found = 1;
  return kOk;
}
API Status p_cublasLtMatmul(void*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*,
                            void*, void*, void*, const void*, void*, size_t, void* stream) {
  return library_kernel(stream, "cublasLtMatmul");
}

// cuDNN: convolutions by the functions of its version 7, which torch calls if the environment says so
// (see planted.py), and normalisation of batches.

API size_t p_cudnnGetVersion() {
  const char* version = getenv("PLANTED_CUDNN");
  return version ? size_t(atoll(version)) : 91900;
}
API size_t p_cudnnGetCudartVersion() { return PLANTED_CUDA; }
API const char* p_cudnnGetErrorString(Status) { return "planted: no such function of cuDNN"; }
API void p_cudnnGetLastErrorString(char* out, size_t size) { strncpy(out, "planted", size); }
API Status p_cudnnCreateTensorDescriptor(void** out) { return describe(out); }
API Status p_cudnnDestroyTensorDescriptor(void* description) { return forget(description); }
API Status p_cudnnSetTensorNdDescriptor(void*, int, int, const int*, const int*) { return kOk; }
API Status p_cudnnCreateFilterDescriptor(void** out) { return describe(out); }
API Status p_cudnnDestroyFilterDescriptor(void* description) { return forget(description); }
API Status p_cudnnSetFilterNdDescriptor(void*, int, int, int, const int*) { return kOk; }
API Status p_cudnnCreateConvolutionDescriptor(void** out) { return describe(out); }
API Status p_cudnnDestroyConvolutionDescriptor(void* description) { return forget(description); }
API Status p_cudnnSetConvolutionNdDescriptor(void*, int, const int*, const int*, const int*, int, int) { return kOk; }
API Status p_cudnnSetConvolutionGroupCount(void*, int) { return kOk; }
API Status p_cudnnSetConvolutionMathType(void*, int) { return kOk; }
API Status p_cudnnCreateActivationDescriptor(void** out) { return describe(out); }
API Status p_cudnnDestroyActivationDescriptor(void* description) { return forget(description); }
API Status p_cudnnSetActivationDescriptor(void*, int, int, double) { return kOk; }

// One algorithm, which needs no memory and is always the same.
// out: what is said of an algorithm (`cudnnConvolutionFwdAlgoPerf_t`).
static Status one_algorithm(int* found, char* out) {
  const int is_deterministic = 1;
  memset(out, 0, 48);
  memcpy(out + 24, &is_deterministic, sizeof is_deterministic);
  *found = 1;
  return kOk;
}
static Status no_bytes(size_t* bytes) {
  *bytes = 0;
  return kOk;
}
#define CONVOLUTION(direction)                                                                                          \
  API Status p_cudnnGetConvolution##direction##Algorithm_v7(void*, void*, void*, void*, void*, int, int* found, char* out) { \
    return one_algorithm(found, out);                                                                                   \
  }                                                                                                                     \
  API Status p_cudnnGetConvolution##direction##WorkspaceSize(void*, void*, void*, void*, void*, int, size_t* bytes) {   \
    return no_bytes(bytes);                                                                                             \
  }                                                                                                                     \
  KERNEL(cudnnConvolution##direction)
CONVOLUTION(Forward)
CONVOLUTION(BackwardData)
CONVOLUTION(BackwardFilter)
KERNEL(cudnnBatchNormalizationForwardTrainingEx)
KERNEL(cudnnBatchNormalizationForwardInference)
KERNEL(cudnnBatchNormalizationBackwardEx)
API Status p_cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void*, int, int, void*, void*, void*, void*, void*, size_t* bytes) {
  return no_bytes(bytes);
}
API Status p_cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void*, int, int, void*, void*, size_t* bytes) {
  return no_bytes(bytes);
}
API Status p_cudnnGetBatchNormalizationBackwardExWorkspaceSize(void*, int, int, void*, void*, void*, void*, void*, void*, void*, size_t* bytes) {
  return no_bytes(bytes);
}
