// For binaries that run with older libraries than those that they are built with. What these have since is
// here, for the core alone.

#include <new>

// glibc 2.32 says by this whether a process has one thread; here, none ever has.
extern "C" __attribute__((visibility("hidden"))) char __libc_single_threaded = 0;

namespace std {
// In libstdc++ since gcc 11.
__attribute__((visibility("hidden"), noreturn)) void __throw_bad_array_new_length() { throw bad_array_new_length(); }
}  // namespace std
