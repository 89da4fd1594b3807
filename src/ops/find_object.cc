// The exception unwinder that libgcc brings into the library asks the C library for the unwind tables of an address by a
// function that only glibc 2.35 has. This one gives the same answer from what every glibc has, so that the library runs
// with 2.34 (RHEL 9) too.
#include <dlfcn.h>
#include <link.h>

#include <cstdint>

namespace {

struct Search {
  std::uintptr_t address;
  dl_find_object* result;
};

std::uintptr_t begin_of(const dl_phdr_info& object, const ElfW(Phdr) & segment) {
  return object.dlpi_addr + segment.p_vaddr;
}

// Nonzero ends the iteration: the object that holds the address is found.
int visit(dl_phdr_info* object, std::size_t, void* data) {
  const Search& search = *static_cast<const Search*>(data);
  bool holds = false;
  std::uintptr_t tables = 0;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    const std::uintptr_t begin = begin_of(*object, segment);
    if (segment.p_type == PT_LOAD && search.address - begin < segment.p_memsz) holds = true;
    if (segment.p_type == PT_GNU_EH_FRAME) tables = begin;
  }
  if (!holds || tables == 0) return 0;
  *search.result = {};
  search.result->dlfo_eh_frame = reinterpret_cast<void*>(tables);
  return 1;
}

}  // namespace

extern "C" int _dl_find_object(void* address, dl_find_object* result) noexcept {
  Search search{reinterpret_cast<std::uintptr_t>(address), result};
  return dl_iterate_phdr(visit, &search) == 0 ? -1 : 0;
}
