// In place of CUDA's driver: knows the mode in which each thread captures, and whether a stream is
// captured. With OF_TORCH, in place of torch's library for CUDA.

#ifdef OF_TORCH

// c10::cuda::CUDAStream::stream() const: any address does as a handle.
extern "C" void* _ZNK3c104cuda10CUDAStream6streamEv(void* stream) { return stream; }

#else

namespace {
thread_local int mode = 0;  // CU_STREAM_CAPTURE_MODE_GLOBAL
int captures = 0;
long long asked = 0;
}  // namespace

extern "C" {

int cuThreadExchangeStreamCaptureMode(int* other) {
  int before = mode;
  mode = *other;
  *other = before;
  return 0;
}

int cuStreamIsCapturing(void* stream, int* status) {
  asked++;
  *status = stream != nullptr && captures;
  return 0;
}

int planted_capture_mode() { return mode; }
void planted_capture(int does) { captures = does; }
long long planted_asked() { return asked; }

}  // extern "C"

#endif
