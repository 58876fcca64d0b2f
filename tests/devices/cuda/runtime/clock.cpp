// The clock of the host, which tests move, and all else that they ask of the runtime or tell it.

#include "planted.h"

#include <time.h>

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace planted {

namespace {
int64_t virtual_ns = 1000000;

const std::map<std::string, int64_t*>& by_name() {
  static const auto& all = *new std::map<std::string, int64_t*>{
      {"default_ns", &settings.default_ns}, {"gemm_ns", &settings.gemm_ns},
      {"copy_ns", &settings.copy_ns},       {"record_ns", &settings.record_ns},
      {"latency_ns", &settings.latency_ns}, {"real_clock", &settings.real_clock},
      {"devices", &settings.devices},       {"total_bytes", &settings.total_bytes},
      {"failing", &settings.failing},       {"verbose", &settings.verbose},
  };
  return all;
}

struct FromEnvironment {
  FromEnvironment() {
    for (auto [name, place] : by_name()) {
      std::string variable = "PLANTED_" + name;
      for (char& letter : variable) letter = char(toupper(letter));
      if (const char* value = getenv(variable.c_str())) *place = atoll(value);
    }
  }
} from_environment;
}  // namespace

int64_t monotonic_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t(time.tv_sec) * 1000000000 + time.tv_nsec;
}

int64_t now() { return settings.real_clock ? monotonic_ns() : virtual_ns; }

void wait_until(int64_t ns) {
  int64_t takes_ns = ns - now();
  if (takes_ns <= 0) return;
  state.numbers["waits"]++;
  state.numbers["waited_ns"] += takes_ns;
  if (settings.real_clock) {
    timespec pause{time_t(takes_ns / 1000000000), long(takes_ns % 1000000000)};
    nanosleep(&pause, nullptr);
  } else {
    virtual_ns = ns;
  }
}

}  // namespace planted

using namespace planted;

// How often each function was called, by the number that its stub has.
extern "C" {
__attribute__((visibility("default"))) int64_t planted_counts[8192] = {};
}

// The place of a setting; null: there is no such one.
API int64_t* planted_setting(const char* name) {
  auto found = by_name().find(name);
  return found == by_name().end() ? nullptr : found->second;
}
API int64_t planted_number(const char* name) {
  Lock lock(mutex);
  return state.numbers[name];
}
API int64_t planted_time() {
  Lock lock(mutex);
  return now();
}
API void planted_pass(int64_t ns) {
  Lock lock(mutex);
  virtual_ns += ns;
}
API void planted_next(int64_t ns) { next_ns = ns; }
API void planted_plan(const char* part_of_name, int64_t ns) {
  Lock lock(mutex);
  state.plans.push_back({part_of_name, ns});
}
API void planted_forget() {
  Lock lock(mutex);
  state.plans.clear();
  state.log.clear();
}
API int64_t planted_log_size() {
  Lock lock(mutex);
  return int64_t(state.log.size());
}
API const char* planted_log_entry(int64_t place, int64_t* out) {
  Lock lock(mutex);
  const Ran& ran = state.log[size_t(place)];
  out[0] = ran.device, out[1] = ran.stream, out[2] = ran.launched_ns;
  out[3] = ran.start_ns, out[4] = ran.end_ns, out[5] = ran.thread;
  return ran.name.c_str();
}
// What the program holds of a device.
API int64_t planted_used_bytes(int device) {
  Lock lock(mutex);
  return state.used_bytes[size_t(device)];
}

// Stubs of functions that nobody wrote come here. code: that of their library for "not supported".
Status planted_missing(const char* name, Status code) {
  Lock lock(mutex);
  if (state.missing[name]++ == 0) fprintf(stderr, "missing: %s\n", name);
  return code;
}
// Their names, a line each.
API const char* planted_missing_names() {
  Lock lock(mutex);
  static std::string& names = *new std::string;
  names.clear();
  for (const auto& [name, _] : state.missing) names += name + "\n";
  return names.c_str();
}
