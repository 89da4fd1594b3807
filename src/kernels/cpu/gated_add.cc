#include "kernels/cpu/gated_add.h"

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/row_kernels.h"

namespace sluice {
namespace {

template <typename T>
void add_row(const GatedAddArgs& args, std::int64_t row) {
  const float gate = to_f32(static_cast<const T*>(args.gate)[row]);
  for (std::int64_t i = row * args.width; i < (row + 1) * args.width; ++i) {
    const T gated = from_f32<T>(to_f32(static_cast<const T*>(args.y)[i]) * gate);
    static_cast<T*>(args.output)[i] = from_f32<T>(to_f32(static_cast<const T*>(args.x)[i]) + to_f32(gated));
  }
}

void scalar_rows(const GatedAddArgs& args, std::int64_t begin, std::int64_t end) noexcept {
  with_float_type(args.type, [&](auto type) {
    for (std::int64_t row = begin; row < end; ++row) add_row<decltype(type)>(args, row);
  });
}

}  // namespace

void gated_add(Level level, const GatedAddArgs& args, Executor& executor) noexcept {
  for_row_pieces(executor, args.rows, args.width, [&](std::int64_t begin, std::int64_t end) noexcept {
    switch (level) {
      case Level::scalar:
        return scalar_rows(args, begin, end);
      case Level::avx2:
        return avx2::gated_add_rows(args, begin, end);
      case Level::avx512:
      case Level::amx:
        return avx512::gated_add_rows(args, begin, end);
    }
  });
}

}  // namespace sluice
