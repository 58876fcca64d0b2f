// Which owners of memory grow from step to step.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace memory {

// How much an owner grows a step, in the mean, and the number of the step with which that began.
struct Growing {
  double bytes_per_step;
  int64_t since;
};

// Says whether an owner grows, by the bytes that it has at the ends of steps; in constant memory.
//
// Steps are taken together to stretches of 1, 2, 4, ..., so that growth in one of many steps shows, too. A stretch at
// whose end there is more than ever before, by the least growth that counts, earns a point; another one loses three.
// So points add up where more than three of four stretches grow. Where those are no likelier than others, 12 points
// are rare: one in 2^12, and fewer, as few random levels are at their highest. What comes and goes is known by its
// deepest fall, and what has stopped by the last few rises.
class Trend {
 public:
  // The bytes rise above `most` in the step that is about to end. before, number: of the last one.
  Trend(int64_t before, int64_t number, int64_t most) {
    now_ = {before, number, most, 0};
    for (Phase& phase : phases_) phase.before = phase.begin = now_;
  }

  // A step has ended. number: what its number is for others.
  void step_ended(int64_t step, int64_t number, int64_t bytes) {
    fall_ = std::max(fall_, now_.most - bytes);
    bool rises = bytes - now_.most >= kLeast;
    if (rises) risen_ = step;
    now_ = {step, number, std::max(now_.most, bytes), now_.rises + rises};
    for (size_t scale = 0; scale < kScales && step % (int64_t(1) << scale) == 0; scale++) {
      Phase& phase = phases_[scale];
      if (bytes - phase.begin.most >= kLeast * (step - phase.begin.step)) {
        if (phase.points == 0) phase.start = phase.begin;
        phase.points = std::min(phase.points + 1, kMostPoints);
      } else {
        phase.points = std::max(phase.points - kLoss, 0);
      }
      phase.before = std::exchange(phase.begin, now_);
    }
  }

  // By the shortest stretches that show it, as these know best where it began; unless longer ones know that it
  // began well before.
  std::optional<Growing> growing() const {
    std::optional<Growing> found;
    int64_t began = 0;
    for (size_t scale = 0; scale < kScales; scale++) {
      const Moment& start = phases_[scale].start;
      if (phases_[scale].points < kAlarm || now_.most - start.most <= fall_ || has_stopped(start)) continue;
      if (found && start.step + (int64_t(2) << scale) > began) continue;
      began = start.step;
      found = {slope(start), start.number + 1};
    }
    return found;
  }

 private:
  static constexpr int64_t kLeast = 1024;  // bytes a step
  static constexpr size_t kScales = 11;    // up to 1 024 steps
  static constexpr int kAlarm = 12, kMostPoints = 18, kLoss = 3;
  static constexpr int64_t kGaps = 3, kRises = 8;

  // most: the most bytes until then. rises: how often these have risen.
  struct Moment {
    int64_t step = 0, number = 0, most = 0, rises = 0;
  };
  // begin, before: of the stretch, and of the one before. start: of the growth.
  struct Phase {
    Moment before, begin, start;
    int points = 0;
  };

  double slope(const Moment& since) const {
    return double(now_.most - since.most) / double(std::max<int64_t>(now_.step - since.step, 1));
  }
  // Whether the last rise was long ago, for what is usual; or half of the growth is missing in about the time
  // of the last few.
  bool has_stopped(const Moment& start) const {
    int64_t steps = risen_ - start.step, rises = now_.rises - start.rises;
    if ((now_.step - risen_) * rises > kGaps * steps) return true;
    size_t scale = 0;
    while (scale + 1 < kScales && (int64_t(2) << scale) * rises <= kRises * steps) scale++;
    return slope(phases_[scale].before) < slope(start) / 2;
  }

  std::array<Phase, kScales> phases_;
  Moment now_;
  int64_t risen_ = 0, fall_ = 0;
};

// How the bytes of owners grow from step to step. The codes of one group have one owner.
class Growth {
 public:
  // There will be something of a code and kind of which there was nothing yet.
  void add(int32_t code, uint8_t kind) { parts_.push_back({code, kind}); }

  // number: of the step. groups: of the codes from 0, the code that stands for the group; codes below zero are by
  // themselves. bytes_of: tells what there is of a code and kind.
  template <class Function>
  void step_ended(int64_t number, const int32_t* groups, size_t count, Function bytes_of) {
    step_++;
    for (Owner& owner : owners_) owner.bytes = 0;
    for (Part& part : parts_) {
      if (part.owner < 0) {
        int32_t group = part.code >= 0 && size_t(part.code) < count ? groups[part.code] : part.code;
        part.owner = owner_of(group, part.kind);
      }
      owners_[size_t(part.owner)].bytes += bytes_of(part.code, part.kind);
    }
    for (Owner& owner : owners_) {
      if (step_ == 1) owner.first = owner.bytes;
      if (owner.trend == nullptr && owner.bytes > owner.first)
        owner.trend = std::make_unique<Trend>(step_ - 1, number_, owner.first);
      if (owner.trend) owner.trend->step_ended(step_, number, owner.bytes);
    }
    number_ = number;
  }

  // Calls `function` with the code, the kind and the bytes of each owner that grows, as of the last end of a step,
  // and with how it does.
  template <class Function>
  void each(Function function) const {
    for (const Owner& owner : owners_)
      if (owner.trend)
        if (auto found = owner.trend->growing()) function(owner.code, owner.kind, owner.bytes, *found);
  }
  size_t size() const { return parts_.size(); }

 private:
  struct Part {
    int32_t code;
    uint8_t kind;
    int32_t owner = -1;  // its place; below zero: not known yet
  };
  // first: the bytes at the end of the first step.
  struct Owner {
    int32_t code;
    uint8_t kind;
    int64_t bytes = 0, first = 0;
    std::unique_ptr<Trend> trend = nullptr;
  };
  int32_t owner_of(int32_t code, uint8_t kind) {
    auto [known, is_new] = places_.try_emplace({code, kind}, int32_t(owners_.size()));
    if (is_new) owners_.push_back({code, kind});
    return known->second;
  }

  std::vector<Part> parts_;
  std::vector<Owner> owners_;
  std::map<std::pair<int32_t, uint8_t>, int32_t> places_;
  int64_t step_ = 0, number_ = 0;
};

}  // namespace memory
