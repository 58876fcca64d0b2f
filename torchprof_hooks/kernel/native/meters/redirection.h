// Redirects calls of torch's functions to ours, for as long as we observe them: in the tables
// through which libraries call what is defined in others (the ELF format's global offset tables).

#pragma once

#include <dlfcn.h>
#ifdef __linux__
#include <link.h>
#endif
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <vector>

namespace memory {

// A function of torch's, and ours, which has to call it.
struct Redirected {
  void *theirs, *ours;
};

// By its mangled name, so with the types of its parameters; null: this torch has no such function.
inline void* find_function(const char* name) { return dlsym(RTLD_DEFAULT, name); }

#ifdef __linux__
// What the loader has read of a library: the places that it has written addresses of functions to.
class CallTable {
 public:
  explicit CallTable(const dl_phdr_info& info) : base_(info.dlpi_addr) {
    for (int number = 0; number < info.dlpi_phnum; number++) {
      const ElfW(Phdr)& part = info.dlpi_phdr[number];
      if (part.p_type == PT_DYNAMIC) read(reinterpret_cast<const ElfW(Dyn)*>(base_ + part.p_vaddr));
      if (part.p_type != PT_GNU_RELRO) continue;
      protected_begin_ = base_ + part.p_vaddr;
      protected_end_ = protected_begin_ + part.p_memsz;
    }
  }

  // Exchanges an address for another one where the library calls a function that is defined elsewhere.
  // Returns in how many places.
  int exchange(void* before, void* after) const {
    if (symbols_ == nullptr) return 0;
    int found = 0;
    auto look = [&](const ElfW(Rela)* entry, const ElfW(Rela)* end) {
      for (; entry < end; entry++) {
        auto type = ELF64_R_TYPE(entry->r_info);
        if (type != kOfCall && type != kOfAddress) continue;
        auto* place = reinterpret_cast<std::atomic<void*>*>(base_ + entry->r_offset);
        if (place->load(std::memory_order_relaxed) != before) continue;
        if (symbols_[ELF64_R_SYM(entry->r_info)].st_shndx == SHN_UNDEF) found += write(place, after);
      }
    };
    if (calls_ != nullptr) look(calls_, calls_ + calls_bytes_ / sizeof *calls_);
    if (others_ != nullptr) look(others_ + relative_, others_ + others_bytes_ / sizeof *others_);
    return found;
  }

 private:
#if defined(__aarch64__)
  static constexpr unsigned kOfCall = R_AARCH64_JUMP_SLOT, kOfAddress = R_AARCH64_GLOB_DAT;
#else
  static constexpr unsigned kOfCall = R_X86_64_JUMP_SLOT, kOfAddress = R_X86_64_GLOB_DAT;
#endif

  void read(const ElfW(Dyn)* entry) {
    for (; entry->d_tag != DT_NULL; entry++) {
      ElfW(Addr) value = entry->d_un.d_val;
      void* address = reinterpret_cast<void*>(value < base_ ? base_ + value : value);  // glibc has added it
      switch (entry->d_tag) {
        case DT_SYMTAB: symbols_ = static_cast<const ElfW(Sym)*>(address); break;
        case DT_JMPREL: calls_ = static_cast<const ElfW(Rela)*>(address); break;
        case DT_PLTRELSZ: calls_bytes_ = value; break;
        case DT_RELA: others_ = static_cast<const ElfW(Rela)*>(address); break;
        case DT_RELASZ: others_bytes_ = value; break;
        case DT_RELACOUNT: relative_ = value; break;  // these come first, and have no names
      }
    }
  }
  // Some places are read-only: the loader has protected them after it had written them.
  bool write(std::atomic<void*>* place, void* value) const {
    auto address = reinterpret_cast<ElfW(Addr)>(place);
    bool is_protected = address >= protected_begin_ && address < protected_end_;
    auto page_bytes = ElfW(Addr)(sysconf(_SC_PAGESIZE));
    void* page = reinterpret_cast<void*>(address & ~(page_bytes - 1));
    if (is_protected && mprotect(page, page_bytes, PROT_READ | PROT_WRITE) != 0) return false;
    place->store(value, std::memory_order_release);
    if (is_protected) mprotect(page, page_bytes, PROT_READ);
    return true;
  }

  const ElfW(Addr) base_;
  ElfW(Addr) protected_begin_ = 0, protected_end_ = 0;
  const ElfW(Sym)* symbols_ = nullptr;
  const ElfW(Rela) *calls_ = nullptr, *others_ = nullptr;
  size_t calls_bytes_ = 0, others_bytes_ = 0, relative_ = 0;
};

// Has all libraries that are loaded call ours, but for those whose calls somebody else has redirected
// before. Or, if not `does`, restores what they called; who has redirected calls after us may call ours for good.
// Returns in how many places it has changed the first function.
inline int redirect(const std::vector<Redirected>& functions, bool does) {
  struct Change {
    const std::vector<Redirected>& functions;
    bool does;
    int found;
  } change{functions, does, 0};
  dl_iterate_phdr(  // no library goes away meanwhile
      [](dl_phdr_info* info, size_t, void* data) {
        auto& change = *static_cast<Change*>(data);
        CallTable table(*info);
        for (const Redirected& one : change.functions) {
          if (one.theirs == nullptr) continue;
          int found = change.does ? table.exchange(one.theirs, one.ours) : table.exchange(one.ours, one.theirs);
          if (&one == &change.functions.front()) change.found += found;
        }
        return 0;
      },
      &change);
  return change.found;
}
#else
inline int redirect(const std::vector<Redirected>&, bool) { return 0; }  // another format of libraries
#endif

}  // namespace memory
