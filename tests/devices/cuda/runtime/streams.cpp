// Streams, events, and captures of streams into graphs.

#include "planted.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace planted {

Stream* default_stream(int device) {
  auto& all = state.default_streams;
  while (int(all.size()) <= device) all.push_back(new Stream{int(all.size()), 0});
  return all[size_t(device)];
}

// Handles up to 2 stand for the default stream of the current device.
Stream* stream_of(void* handle) {
  if (uintptr_t(handle) <= 2) return default_stream(current_device);
  Stream* found = static_cast<Stream*>(handle);
  return state.streams.count(found) ? found : nullptr;
}

static void violate(Capture* capture, const char* call) {
  capture->graph->is_invalid = true;
  if (settings.verbose) fprintf(stderr, "planted: %s ends a capture\n", call);
}

// Whether this call must not come while a stream is captured; then these captures are invalid. A capture
// in global mode forbids it to all threads, one in thread-local mode to its own, but for threads and
// captures in relaxed mode.
bool ends_captures(const char* call) {
  if (capture_mode == kRelaxed) return false;
  bool ends = false;
  for (Capture* capture : state.captures) {
    bool is_mine = capture->thread == std::this_thread::get_id();
    bool of_all = capture->mode == kGlobal && capture_mode == kGlobal;
    if (!of_all && !(is_mine && capture->mode != kRelaxed)) continue;
    violate(capture, call);
    ends = true;
  }
  if (ends) state.numbers["violations"]++;
  return ends;
}

// The same of a call that asks a stream, or waits for it.
static bool ends_captures_of(Stream* stream, const char* call) {
  if (stream->capture == nullptr) return ends_captures(call);
  violate(stream->capture, call);
  state.numbers["violations"]++;
  return true;
}

static bool is_event(void* event) { return state.events.count(static_cast<Event*>(event)) > 0; }

}  // namespace planted

using namespace planted;

// Streams

API Status p_cudaStreamCreateWithPriority(void** out, unsigned, int priority) {
  Lock lock(mutex);
  use_device();
  Stream* made = new Stream{current_device, state.next_id++};
  made->priority = priority;
  state.streams.insert(made);
  *out = made;
  return kOk;
}
API Status p_cudaStreamCreate(void** out) { return p_cudaStreamCreateWithPriority(out, 0, 0); }
API Status p_cudaStreamCreateWithFlags(void** out, unsigned flags) {
  return p_cudaStreamCreateWithPriority(out, flags, 0);
}
API Status p_cudaStreamDestroy(void* handle) {
  Lock lock(mutex);
  state.streams.erase(static_cast<Stream*>(handle));
  return kOk;
}
API Status p_cudaStreamGetPriority(void* handle, int* out) {
  Lock lock(mutex);
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return fail(kBadHandle);
  *out = stream->priority;
  return kOk;
}
API Status p_cudaStreamQuery(void* handle) {
  Lock lock(mutex);
  Shown shown(kShowStreamQuery);
  if (settings.failing) return fail(kFailed);
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return fail(kBadHandle);
  if (ends_captures_of(stream, "cudaStreamQuery")) return fail(kCaptureUnsupported);
  return stream->end_ns <= now() ? kOk : fail(kNotReady);
}
API Status p_cudaStreamSynchronize(void* handle) {
  Lock lock(mutex);
  Shown shown(kShowStreamSync);
  if (settings.failing) return fail(kFailed);
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return fail(kBadHandle);
  if (ends_captures_of(stream, "cudaStreamSynchronize")) return fail(kCaptureUnsupported);
  wait_until(stream->end_ns);
  return kOk;
}

// A stream that waits for an event of a capture is captured, too.
static Status join_capture(Stream* stream, Event* event) {
  Capture* capture = event->capture;
  auto& all = state.captures;
  if (std::find(all.begin(), all.end(), capture) == all.end()) return fail(kCaptureUnsupported);
  if (stream->capture && stream->capture != capture) return fail(kCaptureIsolation);
  if (!stream->capture) {
    stream->capture = capture;
    stream->captured_ns = 0;
    capture->joined.insert(stream);
  }
  stream->captured_ns = std::max(stream->captured_ns, event->ns);
  return kOk;
}
API Status p_cudaStreamWaitEvent(void* handle, void* which, unsigned) {
  Lock lock(mutex);
  Stream* stream = stream_of(handle);
  if (stream == nullptr || !is_event(which)) return fail(kBadHandle);
  Event* event = static_cast<Event*>(which);
  if (event->is_captured) return join_capture(stream, event);
  if (!stream->capture && event->is_recorded) stream->end_ns = std::max(stream->end_ns, event->ns);
  return kOk;
}
API Status p_cudaStreamAddCallback(void* handle, void (*function)(void*, Status, void*), void* data, unsigned) {
  function(handle, kOk, data);
  return kOk;
}
API Status p_cudaLaunchHostFunc(void*, void (*function)(void*), void* data) {
  function(data);
  return kOk;
}

// Events

API Status p_cudaEventCreateWithFlags(void** out, unsigned flags) {
  Lock lock(mutex);
  use_device();
  Event* made = new Event{current_device, flags};
  state.events.insert(made);
  *out = made;
  return kOk;
}
API Status p_cudaEventCreate(void** out) { return p_cudaEventCreateWithFlags(out, 0); }
API Status p_cudaEventDestroy(void* event) {
  Lock lock(mutex);
  if (!state.events.erase(static_cast<Event*>(event))) return fail(kBadHandle);
  delete static_cast<Event*>(event);
  return kOk;
}
API Status p_cudaEventRecord(void* which, void* handle) {
  Lock lock(mutex);
  Shown shown(kShowRecord);
  if (settings.failing) return fail(kFailed);
  Stream* stream = stream_of(handle);
  Event* event = static_cast<Event*>(which);
  if (stream == nullptr || !is_event(which) || event->device != stream->device) {
    state.numbers["bad records"]++;
    return fail(kBadHandle);
  }
  event->is_recorded = true;
  event->is_captured = stream->capture != nullptr;
  if (event->is_captured) {
    event->capture = stream->capture;
    event->ns = stream->captured_ns;
    if (event->takes_times()) state.numbers["timing records in captures"]++;
    return kOk;
  }
  if (event->takes_times()) state.numbers["timing records"]++;
  if (settings.record_ns) stream->end_ns = std::max(stream->end_ns, now()) + settings.record_ns;
  int64_t begins_ns = now() + (stream->end_ns > now() ? 0 : settings.latency_ns);
  event->ns = std::max(begins_ns, stream->end_ns);
  return kOk;
}
API Status p_cudaEventRecordWithFlags(void* event, void* handle, unsigned) { return p_cudaEventRecord(event, handle); }

// What is true of every question about an event. kOk: it may be answered.
static Status question(void* which, const char* call) {
  if (settings.failing) return fail(kFailed);
  if (!is_event(which)) return fail(kBadHandle);
  if (static_cast<Event*>(which)->is_captured) {
    state.numbers["violations"]++;
    return fail(kCapturedEvent);
  }
  return ends_captures(call) ? fail(kCaptureUnsupported) : kOk;
}
API Status p_cudaEventQuery(void* which) {
  Lock lock(mutex);
  Shown shown(kShowEventQuery);
  if (Status error = question(which, "cudaEventQuery")) return error;
  Event* event = static_cast<Event*>(which);
  return !event->is_recorded || event->ns <= now() ? kOk : fail(kNotReady);
}
API Status p_cudaEventSynchronize(void* which) {
  Lock lock(mutex);
  Shown shown(kShowEventSync);
  if (Status error = question(which, "cudaEventSynchronize")) return error;
  Event* event = static_cast<Event*>(which);
  if (event->is_recorded) wait_until(event->ns);
  return kOk;
}
API Status p_cudaEventElapsedTime(float* ms, void* first, void* last) {
  Lock lock(mutex);
  Shown shown(kShowElapsed);
  if (settings.failing) return fail(kFailed);
  Event *begin = static_cast<Event*>(first), *end = static_cast<Event*>(last);
  bool are_good = is_event(first) && is_event(last) && begin->is_recorded && end->is_recorded &&
                  begin->device == end->device && begin->takes_times() && end->takes_times();
  if (!are_good || begin->is_captured || end->is_captured) {
    state.numbers["bad times"]++;
    return fail(are_good ? kCapturedEvent : kBadHandle);
  }
  if (begin->ns > now() || end->ns > now()) return fail(kNotReady);
  *ms = float(double(end->ns - begin->ns) / 1e6);
  return kOk;
}
API Status p_cudaEventElapsedTime_v2(float* ms, void* first, void* last) {
  return p_cudaEventElapsedTime(ms, first, last);
}

// Captures

Status planted::p_cudaThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, capture_mode);
  return kOk;
}
static int capture_status(const Stream* stream) {
  return stream->capture == nullptr ? 0 : stream->capture->graph->is_invalid ? 2 : 1;
}
Status planted::p_cudaStreamIsCapturing(void* handle, int* status) {
  Lock lock(mutex);
  Shown shown(kShowIsCapturing);
  if (settings.failing) return fail(kFailed);
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return fail(kBadHandle);
  *status = capture_status(stream);
  return kOk;
}
API Status p_cudaStreamBeginCapture(void* handle, int mode) {
  Lock lock(mutex);
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return fail(kBadHandle);
  if (uintptr_t(handle) <= 2 || stream->capture) return fail(kCaptureUnsupported);
  Graph* graph = new Graph{.id = state.next_id++};
  stream->capture = new Capture{graph, mode, std::this_thread::get_id(), stream, {stream}};
  stream->captured_ns = 0;
  state.captures.push_back(stream->capture);
  state.numbers["captures"]++;
  return kOk;
}
API Status p_cudaStreamEndCapture(void* handle, void** out) {
  Lock lock(mutex);
  *out = nullptr;
  Stream* stream = stream_of(handle);
  if (stream == nullptr || stream->capture == nullptr) return fail(kInvalid);
  Capture* capture = stream->capture;
  int64_t most_ns = 0;
  for (Stream* each : capture->joined) {
    most_ns = std::max(most_ns, each->captured_ns);
    each->capture = nullptr;
  }
  capture->graph->ns = stream->captured_ns;
  state.captures.erase(std::find(state.captures.begin(), state.captures.end(), capture));
  if (capture->graph->is_invalid) return fail(kCaptureInvalidated);
  if (most_ns > stream->captured_ns) return fail(kCaptureUnjoined);
  *out = capture->graph;
  return kOk;
}
static Status capture_info(void* handle, int* status, unsigned long long* id, void** graph, size_t* count) {
  Lock lock(mutex);
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return fail(kBadHandle);
  *status = capture_status(stream);
  if (count) *count = 0;
  if (stream->capture == nullptr) return kOk;
  if (id) *id = (unsigned long long)stream->capture->graph->id;
  if (graph) *graph = stream->capture->graph;
  return kOk;
}
API Status p_cudaStreamGetCaptureInfo(void* handle, int* status, unsigned long long* id, void** graph, void***, void**, size_t* count) {
  return capture_info(handle, status, id, graph, count);
}
API Status p_cudaStreamGetCaptureInfo_v2(void* handle, int* status, unsigned long long* id, void** graph, void***, size_t* count) {
  return capture_info(handle, status, id, graph, count);
}
API Status p_cudaStreamGetCaptureInfo_v3(void* handle, int* status, unsigned long long* id, void** graph, void***, void**, size_t* count) {
  return capture_info(handle, status, id, graph, count);
}

// Graphs

API Status p_cudaGraphInstantiate(void** out, void* graph, unsigned long long) {
  *out = new Graph(*static_cast<Graph*>(graph));
  return kOk;
}
API Status p_cudaGraphInstantiateWithFlags(void** out, void* graph, unsigned long long flags) {
  return p_cudaGraphInstantiate(out, graph, flags);
}
API Status p_cudaGraphLaunch(void* which, void* handle) {
  Lock lock(mutex);
  Shown shown(kShowGraphLaunch);
  const Graph& graph = *static_cast<Graph*>(which);
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return fail(kBadHandle);
  int64_t start_ns = begin_ns(*stream);
  if (Status error = work(stream, "graph", graph.ns, /*is_kernel=*/false)) return error;
  if (stream->capture) return kOk;
  uint64_t number = 1;
  for (const GraphNode& node : graph.nodes) {
    int64_t node_ns = start_ns + node.start_ns;
    show_kernel(node.name, *stream, node_ns, node_ns + node.ns, number++);
  }
  return kOk;
}
API Status p_cudaGraphDestroy(void* graph) {
  delete static_cast<Graph*>(graph);
  return kOk;
}
API Status p_cudaGraphExecDestroy(void* graph) { return p_cudaGraphDestroy(graph); }
API Status p_cudaGraphGetNodes(void* graph, void**, size_t* count) {
  *count = static_cast<Graph*>(graph)->nodes.size();
  return kOk;
}
API Status p_cudaGraphDebugDotPrint(void*, const char*, unsigned) { return kOk; }
