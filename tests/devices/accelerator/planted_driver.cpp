// In place of CUDA's driver: knows the mode in which each thread captures.

namespace {
thread_local int mode = 0;  // CU_STREAM_CAPTURE_MODE_GLOBAL
}

extern "C" int cuThreadExchangeStreamCaptureMode(int* other) {
  int before = mode;
  mode = *other;
  *other = before;
  return 0;
}

extern "C" int planted_capture_mode() { return mode; }
