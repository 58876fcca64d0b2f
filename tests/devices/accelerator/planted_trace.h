// What torch's profiler records of the planted device: a plug-in for Kineto, as makers
// of accelerators have one. Its times are those of the planted queues.
#pragma once

#include <torch/csrc/api/include/torch/version.h>

#include <unistd.h>

#include <cstdint>
#include <string>

namespace planted_trace {

// What was queued: when, and when the device ran it; and which thread has done that. No launch is told of
// a kernel that has no thread.
struct Work {
  int64_t launch_ns, start_ns, end_ns, device, stream;
  std::string name;
  int64_t thread;
};

inline int64_t offset_ns = 0;  // from planted times to those of the Unix epoch

}  // namespace planted_trace

// Older torch may lack headers, or have others.
#define TRACES_ARE_KNOWN (TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR >= 213)
#if TRACES_ARE_KNOWN && __has_include(<kineto/libkineto.h>) && __has_include(<fmt/format.h>)
#define HAS_TRACES 1

#define FMT_HEADER_ONLY
#include <kineto/libkineto.h>
#include <kineto/output_base.h>

#include <deque>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace planted_trace {

using namespace libkineto;

inline std::vector<Work> recorded;
inline bool is_recording = false;

inline void ran(const Work& work) {
  if (is_recording) recorded.push_back(work);
}

struct Session final : IActivityProfilerSession {
  TraceSpan span{0, 0, "planted"};
  std::deque<GenericTraceActivity> kept;

  void start() override {
    recorded.clear();
    is_recording = true;
  }
  void stop() override { is_recording = false; }
  std::vector<std::string> errors() override { return {}; }
  void add(ActivityType type, const std::string& name, int64_t start_ns, int64_t end_ns, int64_t id, const Work& work,
           int64_t resource) {
    GenericTraceActivity& activity = kept.emplace_back(span, type, name);
    activity.startTime = offset_ns + start_ns;
    activity.endTime = offset_ns + end_ns;
    activity.id = id;
    activity.device = work.device;
    activity.resource = resource;
  }
  void processTrace(ActivityLogger& logger) override {
    // Operations of torch have numbers of their own, which are the same.
    int64_t id = 0;
    for (const Work& work : recorded) {
      id++;
      add(ActivityType::CONCURRENT_KERNEL, work.name, work.start_ns, work.end_ns, id, work, work.stream);
      if (work.thread == 0) continue;
      add(ActivityType::PRIVATEUSE1_RUNTIME, "plantedLaunch", work.launch_ns, work.launch_ns + 1, id, work, work.thread);
    }
    if (!recorded.empty()) {  // a range of the program, as devices show them, is no work
      const Work &first = recorded.front(), &last = recorded.back();
      add(ActivityType::GPU_USER_ANNOTATION, "range", first.start_ns, last.end_ns, 0, first, first.stream);
    }
    for (const auto& activity : kept) logger.handleGenericActivity(activity);
  }
  std::unique_ptr<DeviceInfo> getDeviceInfo() override { return nullptr; }
  std::vector<ResourceInfo> getResourceInfos() override { return {}; }
  std::unique_ptr<CpuTraceBuffer> getTraceBuffer() override { return nullptr; }
};

struct Profiler final : IActivityProfiler {
  std::string own_name = "planted";
  std::set<ActivityType> types{ActivityType::CONCURRENT_KERNEL, ActivityType::PRIVATEUSE1_RUNTIME,
                               ActivityType::GPU_USER_ANNOTATION};

  const std::string& name() const override { return own_name; }
  const std::set<ActivityType>& availableActivities() const override { return types; }
  std::unique_ptr<IActivityProfilerSession> configure(const std::set<ActivityType>&, const Config&) override {
    return std::make_unique<Session>();
  }
  std::unique_ptr<IActivityProfilerSession> configure(int64_t, int64_t, const std::set<ActivityType>& types,
                                                      const Config& config) override {
    return configure(types, config);
  }
};

inline void register_with_torch() {
  api().registerProfilerFactory([] { return std::make_unique<Profiler>(); });
}

}  // namespace planted_trace

#else
#define HAS_TRACES 0

namespace planted_trace {
inline void ran(const Work&) {}
inline void register_with_torch() {}
}  // namespace planted_trace
#endif
