// Time stamps that a device takes itself: events in its queue of work, one wherever a thread leaves
// a call for another. What the device did between two of them belongs to the call that was entered.

#pragma once

#include "../tools.h"
#include "capture_mode.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace {

// A timing event in a stream.
// event: as the device's backend has it: `c10::Event` would ask the device whether it has passed two
// events before it gives the time between them. code: of the call to which the time belongs that its
// device took since the last stamp there, or `kNobody`.
struct Stamp {
  void* event;
  int64_t code;
  c10::DeviceIndex device;
  c10::StreamId stream;
};

constexpr int64_t kNobody = -1;

// Events that all profiles of the process use again: making one takes longer than recording it.
// By device, as an event stays on the device of its first record. Events in here are never
// destroyed: when the process ends, their device may be gone already.
class UnusedEvents {
 public:
  // Null: the backend is to make one.
  void* take(c10::DeviceType kind, c10::DeviceIndex index) {
    Locked locked(lock_);
    auto& there = by_device_[{kind, index}];
    if (there.empty()) return nullptr;
    void* event = there.back();
    there.pop_back();
    return event;
  }
  void give_back(c10::DeviceType kind, const std::vector<Stamp>& done) {
    std::vector<Stamp> too_many;  // destroyed after the release of the lock
    {
      Locked locked(lock_);
      for (const Stamp& stamp : done) {
        auto& there = by_device_[{kind, stamp.device}];
        if (there.size() < kMost)
          there.push_back(stamp.event);
        else
          too_many.push_back(stamp);
      }
    }
    for (const Stamp& stamp : too_many) c10::impl::VirtualGuardImpl(kind).destroyEvent(stamp.event, stamp.device);
  }

 private:
  //: That are kept for each device. While a device is far behind, more are in use.
  static constexpr size_t kMost = 4096;
  SpinLock lock_;
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, std::vector<void*>> by_device_;
};

inline UnusedEvents& unused_events() {
  static UnusedEvents& all = *new UnusedEvents();
  return all;
}

// The stamps of one meter, and the time between them by the code of the call that had the device.
//
// Nobody waits for the device: stamps are kept until it has passed them. After each `kBatch` stamps, it
// is asked whether it has passed the one before those: then it has passed all older ones of that stream.
//
// Each device has its own chain of stamps. Streams of one device have a chain in common, in which stamps may
// come out of order: a time below zero takes out what is booked twice then.
class Stamps {
 public:
  explicit Stamps(c10::DeviceType kind) : kind_(kind) {}
  Stamps(const Stamps&) = delete;
  ~Stamps() {
    for (const auto& [_, last] : last_) waiting_.push_back(last);
    unused_events().give_back(kind_, {waiting_.begin(), waiting_.end()});
  }

  // Stamps the stream; from here on, the call with this code has its device. Throws if that has failed.
  void record(const c10::impl::VirtualGuardImpl& device, const c10::Stream& stream, int64_t code) {
    Stamp stamp{unused_events().take(kind_, stream.device_index()), kNobody, stream.device_index(), stream.id()};
    try {
      device.record(&stamp.event, stream, stamp.device, c10::EventFlag::BACKEND_DEFAULT);
    } catch (...) {
      if (stamp.event != nullptr) unused_events().give_back(kind_, {stamp});
      throw;
    }
    bool is_batch;
    {
      Locked locked(lock_);
      Chain& chain = chains_[stamp.device];
      stamp.code = std::exchange(chain.owner, code);
      if (std::exchange(chain.entered, code) != stamp.code) stamp.code = kNobody;
      chain.stream = stamp.stream;
      if (code != kNobody) chain.last_owner = code;
      waiting_.push_back(stamp);
      is_batch = ++recorded_ % kBatch == 0;
    }
    if (is_batch) book_passed(device);
  }
  // The call with this code has the device from here on, where no stamp can be taken. What is queued between the
  // last stamp and the next one belongs to the call that had the device at both, and else to nobody.
  void pass_by(c10::DeviceIndex device, int64_t code) {
    Locked locked(lock_);
    chains_[device].entered = code;
  }
  // What was queued since the last stamps belongs to nobody.
  void interrupt() {
    Locked locked(lock_);
    for (auto& [_, chain] : chains_) chain.owner = kNobody;
  }

  // owner: the call that has had a device since its last stamp. entered: that has it now. last_owner: the last
  // call that had it. stream: that was stamped last.
  struct Chain {
    int64_t owner = kNobody, entered = kNobody, last_owner = kNobody;
    c10::StreamId stream = 0;
  };
  Chain chain_of(c10::DeviceIndex device) {
    Locked locked(lock_);
    return chains_[device];
  }
  // How many devices were stamped.
  int64_t devices() {
    Locked locked(lock_);
    return int64_t(chains_.size());
  }

  // Waits for the device, and books everything. Returns whether the sums have changed since the last time.
  bool settle() {
    std::lock_guard<std::mutex> booking(booking_);
    std::vector<Stamp> stamps = oldest(/*kept=*/0);
    if (!stamps.empty()) {
      c10::impl::VirtualGuardImpl device(kind_);
      each_last(stamps, [&](const Stamp& last) {
        QuestionsAllowed allowed;
        device.synchronizeEvent(last.event);
        return true;
      });
      book(device, stamps);
    }
    Locked locked(lock_);
    return std::exchange(is_unread_, false);
  }
  // From now on, `marked_ns` is the time between the stamps so far.
  void mark() {
    Locked locked(lock_);
    marked_until_ = recorded_;
    marked_ns_ = sums_ns_;
    is_unread_ = true;
  }

  std::vector<int64_t> sums_ns() { return copy(sums_ns_); }
  std::vector<int64_t> marked_ns() { return copy(marked_ns_); }
  int64_t recorded() {
    Locked locked(lock_);
    return int64_t(recorded_);
  }

 private:
  static constexpr size_t kBatch = 512;
  struct Span {
    uint64_t number;  // of the stamp at its end
    int64_t code, duration_ns;
  };

  // Copies of the stamps that wait, without the last `kept` ones.
  std::vector<Stamp> oldest(size_t kept) {
    Locked locked(lock_);
    size_t count = waiting_.size() > kept ? waiting_.size() - kept : 0;
    return {waiting_.begin(), waiting_.begin() + std::ptrdiff_t(count)};
  }
  // Calls `is_passed` with the last stamp of each stream, until one is not. A device that has failed will
  // never come to a stamp: there is nothing to wait for.
  template <class Question>
  static bool each_last(const std::vector<Stamp>& stamps, Question is_passed) {
    std::vector<std::pair<c10::DeviceIndex, c10::StreamId>> asked;
    for (auto stamp = stamps.rbegin(); stamp != stamps.rend(); ++stamp) {
      std::pair stream(stamp->device, stamp->stream);
      if (std::find(asked.begin(), asked.end(), stream) != asked.end()) continue;
      asked.push_back(stream);
      try {
        if (!is_passed(*stamp)) return false;
      } catch (const std::exception&) {
      }
    }
    return true;
  }
  void book_passed(const c10::impl::VirtualGuardImpl& device) {
    std::unique_lock<std::mutex> booking(booking_, std::try_to_lock);
    if (!booking) return;
    std::vector<Stamp> stamps = oldest(/*kept=*/kBatch);
    bool have_passed = each_last(stamps, [&](const Stamp& last) {
      QuestionsAllowed allowed;
      return device.queryEvent(last.event);
    });
    if (have_passed) book(device, stamps);
  }

  // Books the time before each of these stamps, which wait longest. The caller has `booking_`.
  void book(const c10::impl::VirtualGuardImpl& device, const std::vector<Stamp>& stamps) {
    std::vector<Span> spans;
    std::vector<Stamp> done;
    for (const Stamp& stamp : stamps) {
      number_++;
      auto [last, is_first] = last_.try_emplace(stamp.device, stamp);
      if (is_first) continue;
      if (stamp.code != kNobody) spans.push_back({number_, stamp.code, elapsed_ns(device, last->second, stamp)});
      done.push_back(last->second);
      last->second = stamp;
    }
    unused_events().give_back(kind_, done);
    Locked locked(lock_);
    waiting_.erase(waiting_.begin(), waiting_.begin() + std::ptrdiff_t(stamps.size()));
    for (const Span& span : spans) {
      add(sums_ns_, span);
      if (span.number <= marked_until_) add(marked_ns_, span);
    }
    is_unread_ |= !spans.empty();
  }
  static int64_t elapsed_ns(const c10::impl::VirtualGuardImpl& device, const Stamp& begin, const Stamp& end) {
    try {
      return std::llround(device.elapsedTime(begin.event, end.event, end.device) * 1e6);
    } catch (const std::exception&) {  // the device has failed
      return 0;
    }
  }
  static void add(std::vector<int64_t>& sums, const Span& span) {
    if (size_t(span.code) >= sums.size()) sums.resize(size_t(span.code) + 1);
    sums[size_t(span.code)] += span.duration_ns;
  }
  std::vector<int64_t> copy(const std::vector<int64_t>& sums) {
    Locked locked(lock_);
    return sums;
  }

  const c10::DeviceType kind_;
  std::mutex booking_;  // taken before `lock_`; guards what follows
  std::map<c10::DeviceIndex, Stamp> last_;  // that were booked
  uint64_t number_ = 0;                     // of stamps that were booked
  SpinLock lock_;                           // guards what follows: threads of the engine stamp, too
  std::map<c10::DeviceIndex, Chain> chains_;
  std::deque<Stamp> waiting_;
  std::vector<int64_t> sums_ns_, marked_ns_;
  uint64_t recorded_ = 0, marked_until_ = 0;
  bool is_unread_ = false;
};

}  // namespace
