// Captures of streams into graphs: what is not allowed while they run is not done, or done such that
// they go on. CUDA's driver is asked by the names of its functions, as the process has loaded it.

#pragma once

#include <c10/core/Stream.h>
#include <dlfcn.h>

#include <optional>

namespace {

// A function of a library that the process has loaded; null if there is none.
template <class Function>
Function loaded(const char* library, const char* name) {
  void* found = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  return found == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(found, name));
}

constexpr const char* kDriver = "libcuda.so.1";

// While an object of this class lives, its thread may query the device, even if a capture runs.
//
// While any stream is captured in global mode, CUDA forbids all threads to ask whether an event has
// passed, and such a question ends the capture. This does not apply to a thread in relaxed mode, which
// torch's own watchdog of NCCL uses, too. (CUDA Driver API, "Stream Management",
// cuThreadExchangeStreamCaptureMode.) With other devices there is no such function, and nothing is changed.
class QuestionsAllowed {
 public:
  QuestionsAllowed() { exchange(); }
  QuestionsAllowed(const QuestionsAllowed&) = delete;
  QuestionsAllowed& operator=(const QuestionsAllowed&) = delete;
  ~QuestionsAllowed() { exchange(); }

 private:
  void exchange() {
    // A device is in use: its driver is there.
    static const auto of_driver = loaded<int (*)(int*)>(kDriver, "cuThreadExchangeStreamCaptureMode");
    if (of_driver != nullptr) of_driver(&mode_);
  }

  int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED
};

// Whether a stream is being captured, by `cuStreamIsCapturing`: torch before 2.13 has a function for that
// in Python alone. nullopt: this is no stream of the driver's. An error counts as yes, too: the driver
// returns one for the default stream while another stream is captured, as using it would end that.
std::optional<bool> driver_captures(const c10::Stream& stream) {
  // c10::cuda::CUDAStream::stream() const; a CUDAStream is a c10::Stream, and nothing else.
  static const auto handle_of = loaded<void* (*)(const c10::Stream*)>("libc10_cuda.so", "_ZNK3c104cuda10CUDAStream6streamEv");
  static const auto asked = loaded<int (*)(void*, int*)>(kDriver, "cuStreamIsCapturing");
  if (stream.device_type() != c10::DeviceType::CUDA || handle_of == nullptr || asked == nullptr) return std::nullopt;
  int status = 0;  // CU_STREAM_CAPTURE_STATUS_NONE
  return asked(handle_of(&stream), &status) != 0 || status != 0;
}

}  // namespace
