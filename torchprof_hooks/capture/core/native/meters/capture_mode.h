// Lets us query a device while a stream of the process is captured into a graph.

#pragma once

#include <dlfcn.h>

namespace {

// While an object of this class lives, its thread may query the device, even if a capture runs.
//
// While any stream is captured in global mode, CUDA forbids all threads to ask whether an event has
// passed, and such a question ends the capture. This does not apply to a thread in relaxed mode, which
// torch's own watchdog of NCCL uses, too. (CUDA Driver API, "Stream Management",
// cuThreadExchangeStreamCaptureMode.) The function is looked up by its name in the driver that the
// process has loaded; with other devices there is none, and nothing is changed.
class QuestionsAllowed {
 public:
  QuestionsAllowed() { exchange(); }
  QuestionsAllowed(const QuestionsAllowed&) = delete;
  QuestionsAllowed& operator=(const QuestionsAllowed&) = delete;
  ~QuestionsAllowed() { exchange(); }

 private:
  using Exchange = int (*)(int*);

  static Exchange find() {
    void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    return driver ? reinterpret_cast<Exchange>(dlsym(driver, "cuThreadExchangeStreamCaptureMode")) : nullptr;
  }
  void exchange() {
    static const Exchange of_driver = find();  // a device is in use: its driver is there
    if (of_driver != nullptr) of_driver(&mode_);
  }

  int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED
};

}  // namespace
