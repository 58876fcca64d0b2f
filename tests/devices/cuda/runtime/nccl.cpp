// NCCL between processes of this machine, and between devices of one process. A collective is queued once
// all its ranks have come with it: up to then the host waits, by the machine's clock. By the planted clock,
// it runs on each rank from when the stream comes to it, and ends on all of them at one moment: the last
// has come, and as long as is planted has passed.
//
// Reductions compute nothing, as all kernels. What only moves is moved if it is small, as torch compares
// what ranks say of their models.

#include "planted.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <utility>

namespace planted {

namespace {

enum : Status { kSystemError = 2, kInvalidArgument = 4, kInvalidUsage = 5 };

constexpr int kMostRanks = 4;
constexpr int kLines = 1 + 2 * kMostRanks;  // of a rank: one for what all do, two for each peer
constexpr uint64_t kKept = 64;              // how much of what was said on a line is kept
constexpr size_t kSmall = 16 << 10;
constexpr int64_t kLongestWait = 60000000000;

// What a rank says of an operation that it has come to.
struct Said {
  std::atomic<uint64_t> number;  // of the operation on this line, from 1: all else is said by then
  int64_t arrived_ns, takes_ns;
  size_t bytes;
  char name[48];
  char moved[kSmall];
};
// The ranks of a communicator: in memory that they share.
struct Clique {
  std::atomic<int> joined;
  Said said[kMostRanks][kLines][kKept];
};
struct Id {
  char path[128];
};
struct Communicator {
  Clique* clique;
  int size, rank, device;
  uint64_t numbers[kLines] = {};
};
struct Operation {
  Communicator* communicator;
  Stream* stream;
  const char* name;
  size_t bytes;  // that all ranks agree on
  const void* from = nullptr;
  size_t sent = 0;
  void* to = nullptr;
  int source = -1;  // the rank from which something comes; -1: each
  size_t from_stride = 0, to_stride = 0;  // between what is for, and of, one rank and the next
  int peer = -1;    // the only other rank in it; -1: all are
  bool is_send = false;
  uint64_t number = 0;
  int64_t end_ns = 0;
};

thread_local int open_groups = 0;
thread_local std::vector<Operation> waiting;  // for the end of its group

Clique* clique_at(const char* path) {
  int file = open(path, O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, sizeof(Clique))) return nullptr;
  void* found = mmap(nullptr, sizeof(Clique), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  return found == MAP_FAILED ? nullptr : static_cast<Clique*>(found);
}

int line_to(int peer, bool is_send) { return peer < 0 ? 0 : 1 + 2 * peer + is_send; }

void say(Operation& operation) {
  Communicator& communicator = *operation.communicator;
  int line = line_to(operation.peer, operation.is_send);
  operation.number = ++communicator.numbers[line];
  Said& said = communicator.clique->said[communicator.rank][line][operation.number % kKept];
  said.arrived_ns = begin_ns(*operation.stream);
  said.takes_ns = planted_ns(operation.name, settings.default_ns);
  said.bytes = operation.bytes;
  strcpy(said.name, operation.name);
  if (operation.sent <= kSmall) memcpy(said.moved, operation.from, operation.sent);
  said.number = operation.number;
}

// False: the rank does not come.
bool wait_for(const Said& said, uint64_t number) {
  for (int64_t since_ns = monotonic_ns(); said.number < number; usleep(20))
    if (monotonic_ns() - since_ns > kLongestWait) return false;
  return true;
}

// Reads what all ranks of an operation say of it, which is when it ends.
Status meet(Operation& operation) {
  const Communicator& me = *operation.communicator;
  int64_t arrived_ns = 0, takes_ns = 0;
  for (int rank = 0; rank < me.size; rank++) {
    if (operation.peer >= 0 && rank != operation.peer && rank != me.rank) continue;
    int line = rank == me.rank ? line_to(operation.peer, operation.is_send)
                               : line_to(operation.peer < 0 ? -1 : me.rank, !operation.is_send);
    const Said& said = me.clique->said[rank][line][operation.number % kKept];
    if (!wait_for(said, operation.number)) return kSystemError;
    if (strcmp(said.name, operation.name) || said.bytes != operation.bytes) {
      fprintf(stderr, "planted: %s of %zu bytes meets %s of %zu\n", operation.name, operation.bytes, said.name, said.bytes);
      return kInvalidUsage;
    }
    arrived_ns = std::max(arrived_ns, said.arrived_ns);
    takes_ns = std::max(takes_ns, said.takes_ns);
    bool gets = operation.to && (operation.source < 0 || operation.source == rank);
    size_t from = size_t(me.rank) * operation.from_stride, to = size_t(rank) * operation.to_stride;
    if (gets && from + operation.bytes <= kSmall)
      memcpy(static_cast<char*>(operation.to) + to, said.moved + from, operation.bytes);
  }
  operation.end_ns = arrived_ns + takes_ns;
  return kOk;
}

// Operations of a group run at once: each says first that it has come.
Status run(std::vector<Operation> operations) {
  for (Operation& operation : operations) {
    Lock lock(mutex);
    if (settings.failing) return 1;
    if (!operation.stream->capture) say(operation);
  }
  for (Operation& operation : operations) {  // without the lock: other threads may be what a rank waits for
    if (operation.stream->capture) continue;
    if (Status error = meet(operation)) return error;
  }
  for (Operation& operation : operations) {
    Lock lock(mutex);
    Shown shown(kShowLaunch);
    Stream* stream = operation.stream;
    int64_t ns = stream->capture ? planted_ns(operation.name, settings.default_ns)
                                 : std::max<int64_t>(0, operation.end_ns - begin_ns(*stream));
    if (work(stream, operation.name, ns, /*is_kernel=*/true)) return 1;
  }
  return kOk;
}

Status begin(Operation operation, void* stream) {
  {
    Lock lock(mutex);
    int before = std::exchange(current_device, operation.communicator->device);
    operation.stream = stream_of(stream);
    current_device = before;
  }
  if (operation.stream == nullptr) return kInvalidArgument;
  if (open_groups == 0) return run({operation});
  waiting.push_back(operation);
  return kOk;
}

size_t bytes_of(size_t count, int type) {
  static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return count * sizes[type];
}

}  // namespace
}  // namespace planted

using namespace planted;

API Status p_ncclGetVersion(int* version) {
  *version = 23007;
  return kOk;
}
API const char* p_ncclGetErrorString(Status error) {
  return error == kOk ? "no error" : error == kSystemError ? "a rank does not come" : "planted error of NCCL";
}
API const char* p_ncclGetLastError(void*) { return ""; }

// Communicators

API Status p_ncclGetUniqueId(Id* id) {
  snprintf(id->path, sizeof id->path, "/dev/shm/planted-nccl-%d-%lld", getpid(), (long long)monotonic_ns());
  return kOk;
}
API Status p_ncclCommInitRank(Communicator** out, int size, Id id, int rank) {
  if (size > kMostRanks) return planted_missing("NCCL with more than 4 ranks", kInvalidArgument);
  Clique* clique = clique_at(id.path);
  if (clique == nullptr) return kSystemError;
  if (++clique->joined == size) unlink(id.path);
  *out = new Communicator{clique, size, rank, current_device};
  return kOk;
}
API Status p_ncclCommInitRankConfig(Communicator** out, int size, Id id, int rank, void*) {
  return p_ncclCommInitRank(out, size, id, rank);
}
// Of devices of this process; null: the first ones.
API Status p_ncclCommInitAll(Communicator** out, int count, const int* devices) {
  Id id;
  p_ncclGetUniqueId(&id);
  for (int rank = 0; rank < count; rank++) {
    if (Status error = p_ncclCommInitRank(out + rank, count, id, rank)) return error;
    out[rank]->device = devices ? devices[rank] : rank;
  }
  return kOk;
}
API Status p_ncclCommCount(const Communicator* communicator, int* count) {
  *count = communicator->size;
  return kOk;
}
API Status p_ncclCommUserRank(const Communicator* communicator, int* rank) {
  *rank = communicator->rank;
  return kOk;
}
API Status p_ncclCommGetAsyncError(void*, Status* error) {
  *error = kOk;
  return kOk;
}
API Status p_ncclCommRegister(void*, void* address, size_t, void** handle) {
  *handle = address;
  return kOk;
}
API Status p_ncclCommDeregister(void*, void*) { return kOk; }
// None is ever freed: threads that watch over it may still ask it.
API Status p_ncclCommFinalize(void*) { return kOk; }
API Status p_ncclCommDestroy(void*) { return kOk; }
API Status p_ncclCommAbort(void*) { return kOk; }

// Operations

API Status p_ncclGroupStart() {
  open_groups++;
  return kOk;
}
API Status p_ncclGroupEnd() {
  if (--open_groups > 0) return kOk;
  return run(std::exchange(waiting, {}));
}
API Status p_ncclAllReduce(const void*, void*, size_t count, int type, int, Communicator* to, void* stream) {
  return begin({.communicator = to, .name = "ncclDevKernel_AllReduce", .bytes = bytes_of(count, type)}, stream);
}
API Status p_ncclReduce(const void*, void*, size_t count, int type, int, int, Communicator* to, void* stream) {
  return begin({.communicator = to, .name = "ncclDevKernel_Reduce", .bytes = bytes_of(count, type)}, stream);
}
API Status p_ncclReduceScatter(const void*, void*, size_t count, int type, int, Communicator* to, void* stream) {
  return begin({.communicator = to, .name = "ncclDevKernel_ReduceScatter", .bytes = bytes_of(count, type)}, stream);
}
API Status p_ncclBroadcast(const void* from, void* out, size_t count, int type, int root, Communicator* to, void* stream) {
  size_t bytes = bytes_of(count, type);
  return begin({.communicator = to, .name = "ncclDevKernel_Broadcast", .bytes = bytes, .from = from, .sent = bytes, .to = out, .source = root}, stream);
}
API Status p_ncclBcast(void* buffer, size_t count, int type, int root, Communicator* to, void* stream) {
  return p_ncclBroadcast(buffer, buffer, count, type, root, to, stream);
}
API Status p_ncclAllGather(const void* from, void* out, size_t count, int type, Communicator* to, void* stream) {
  size_t bytes = bytes_of(count, type);
  return begin({.communicator = to, .name = "ncclDevKernel_AllGather", .bytes = bytes, .from = from, .sent = bytes, .to = out, .to_stride = bytes}, stream);
}
API Status p_ncclAlltoAll(const void* from, void* out, size_t count, int type, Communicator* to, void* stream) {
  size_t bytes = bytes_of(count, type), all = bytes * size_t(to->size);
  return begin({.communicator = to, .name = "ncclDevKernel_AlltoAll", .bytes = bytes, .from = from, .sent = all, .to = out, .from_stride = bytes, .to_stride = bytes}, stream);
}
API Status p_ncclSend(const void* from, size_t count, int type, int peer, Communicator* to, void* stream) {
  size_t bytes = bytes_of(count, type);
  return begin({.communicator = to, .name = "ncclDevKernel_SendRecv", .bytes = bytes, .from = from, .sent = bytes, .peer = peer, .is_send = true}, stream);
}
API Status p_ncclRecv(void* out, size_t count, int type, int peer, Communicator* to, void* stream) {
  size_t bytes = bytes_of(count, type);
  return begin({.communicator = to, .name = "ncclDevKernel_SendRecv", .bytes = bytes, .to = out, .source = peer, .peer = peer}, stream);
}
