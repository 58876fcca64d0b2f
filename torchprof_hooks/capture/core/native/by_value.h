// Structures that torch returns by value. Who has compiled the call decides how much room there is, and who
// has compiled the function how much is written: with other headers of torch, that may be more.

#pragma once

#include <atomic>
#include <cstring>
#include <new>

namespace {

// How many bytes of a `T` that `function` returns by value it has written, up to its last one; more than
// sizeof(T) if it takes T to be larger. The object is not destroyed: whether it is one is not known.
template <class T, class Function>
size_t written_bytes(Function function, T** object) {
  constexpr size_t kMore = 1024;
  constexpr unsigned char kNeverWritten = 0xA5;
  alignas(T) static thread_local unsigned char room[sizeof(T) + kMore];
  std::memset(room, kNeverWritten, sizeof room);
  *object = new (room) T(function());  // into its place: nothing is copied
  std::atomic_signal_fence(std::memory_order_seq_cst);
  size_t found = sizeof room;
  while (found > 0 && room[found - 1] == kNeverWritten) found--;
  return found;
}

}  // namespace
