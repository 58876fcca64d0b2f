// The passes that a thread works for. torch carries them, with the callbacks of a thread, from where a pass
// begins to all threads in which the engine runs parts of it (`ThreadLocalDebugInfo`).

#pragma once

#include "../tools.h"

#include <c10/util/ThreadLocalDebugInfo.h>

#include <memory>
#include <string_view>
#include <type_traits>
#include <vector>

namespace {

struct Node;
struct Pass;
struct Running;

// site: of the cursor that follows the pass: distinguishes cursors.
struct CarriedPass {
  const Relaxed<Node*>* site;
  std::shared_ptr<Running> running;
  std::shared_ptr<Pass> pass;
};

struct Carried : c10::DebugInfoBase {
  std::vector<CarriedPass> passes;  // of each cursor, the innermost
};

template <class Kind>
Kind kind_of_carried() {
  if constexpr (std::is_enum_v<Kind>) {
    return Kind::TEST_INFO_2;  // of older torches, whose kinds are fixed: used by tests of torch alone
  } else {
    static constexpr std::string_view name = "torchprof_hooks";
    return Kind(&name);
  }
}

// Null if this thread works for no pass that is followed.
inline Carried* carried_here() {
  return static_cast<Carried*>(c10::ThreadLocalDebugInfo::get(kind_of_carried<c10::DebugInfoKind>()));
}

// Whether this thread runs a part of a pass for the cursor with this `site`.
inline bool is_carried_here(const Relaxed<Node*>* site) {
  if (const Carried* here = carried_here())
    for (const CarriedPass& one : here->passes)
      if (one.site == site) return true;
  return false;
}

}  // namespace
