#include "kernels/cpu/float_types.h"
#include "kernels/cpu/row_kernels.h"
#include "kernels/cpu/vector_math.h"

namespace sluice::SLUICE_LEVEL {
namespace {

HWY_INLINE Floats rounded(Floats v, const float*) { return v; }

template <typename T>
HWY_INLINE Floats rounded(Floats v, const T*) {
  HWY_ALIGN T narrow[kLanes];
  store(v, narrow);
  return load(narrow);
}

template <typename T>
void add_row(const GatedAddArgs& args, std::int64_t row) {
  const T* x = static_cast<const T*>(args.x) + row * args.width;
  const T* y = static_cast<const T*>(args.y) + row * args.width;
  T* out = static_cast<T*>(args.output) + row * args.width;
  HWY_ALIGN float first[kLanes];
  store(load_part(static_cast<const T*>(args.gate) + row, 1), first);
  const Floats gate = all(first[0]);
  for (std::int64_t i = 0; i < args.width; i += kLanes) {
    const std::int64_t left = args.width - i;
    const Floats gated = rounded(hn::Mul(load_up_to(y + i, left), gate), y);
    store_up_to(hn::Add(load_up_to(x + i, left), gated), out + i, left);
  }
}

}  // namespace

void gated_add_rows(const GatedAddArgs& args, std::int64_t begin, std::int64_t end) noexcept {
  with_float_type(args.type, [&](auto type) {
    for (std::int64_t row = begin; row < end; ++row) add_row<decltype(type)>(args, row);
  });
}

}  // namespace sluice::SLUICE_LEVEL
