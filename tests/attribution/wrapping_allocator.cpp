// An allocator for the CPU that somebody else puts in front of the one that is there.

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

namespace {

struct Wrapping final : c10::Allocator {
  c10::Allocator* inner = nullptr;
  c10::DataPtr allocate(size_t bytes) override { return inner->allocate(bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return inner->raw_deleter(); }
  void copy_data(void* target, const void* source, size_t bytes) const override {
    inner->copy_data(target, source, bytes);
  }
} wrapping;

}  // namespace

extern "C" __attribute__((visibility("default"))) void put_on() {
  wrapping.inner = c10::GetCPUAllocator();
  c10::SetCPUAllocator(&wrapping);
}
