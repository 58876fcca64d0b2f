// Names of what is called in Python, interned.

#pragma once

#include "tools.h"

#define EACH_NAME(DO)                                                                  \
  DO(_call_impl) DO(_compiled_call_impl) DO(_sequence_nr)                              \
  DO(abort_down_to) DO(aborted) DO(append) DO(backward_site) DO(call) \
  DO(called) DO(called_site) DO(closing) DO(count_if_aborted) DO(find)                 \
  DO(forget_oldest) DO(generation)                                                     \
  DO(grad_fn) DO(keep_intervals) DO(keep_loose) DO(look_for_devices) DO(metadata)      \
  DO(moved) DO(opened) DO(returned) DO(returns_to) DO(shaped) DO(site_of_node)         \
  DO(sites) DO(tell_of_pause) DO(unwind_to) DO(works_here)

namespace {

struct Names {
#define DECLARE(name) PyObject* name;
  EACH_NAME(DECLARE)
#undef DECLARE

  void intern() {
#define INTERN(name) name = PyUnicode_InternFromString(#name);
    EACH_NAME(INTERN)
#undef INTERN
  }
} names;

}  // namespace
