// The formatting library's own code, for a shared library that may not need another one: its functions are compiled
// here, from its headers, under the names that the rest of the code, built against the shared libfmt, looks for.
#define FMT_HEADER_ONLY 1
#include <fmt/format.h>

// Compiled with -fkeep-inline-functions; templates are kept by being named.
template fmt::detail::thousands_sep_result<char> fmt::detail::thousands_sep_impl<char>(fmt::detail::locale_ref);
