#include "kernels/cpu/mrope.h"

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/row_kernels.h"

namespace sluice {

std::int64_t find_invalid_position(std::span<const std::int64_t> positions, std::int64_t table_rows) noexcept {
  for (std::size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] < 0 || positions[i] >= table_rows) return static_cast<std::int64_t>(i);
  }
  return -1;
}

int mrope_stream(const MropeArgs& args, std::int64_t frequency) noexcept {
  if (args.shape.streams == 1) return 0;
  if (args.layout == MropeLayout::chunked) {
    if (frequency < args.section[0]) return 0;
    return frequency < args.section[0] + args.section[1] ? 1 : 2;
  }
  if (frequency % 3 == 1 && frequency < 3 * args.section[1]) return 1;
  return frequency % 3 == 2 && frequency < 3 * args.section[2] ? 2 : 0;
}

namespace {

template <typename T>
void rotate_head(const MropeArgs& args, std::int64_t token, std::int64_t head) {
  const MropeShape& shape = args.shape;
  const std::int64_t pairs = shape.rotary_dim / 2;
  const std::int64_t offset = token * args.token_stride + head * args.head_stride;
  const T* x = static_cast<const T*>(args.input) + offset;
  T* y = static_cast<T*>(args.output) + offset;
  for (std::int64_t i = 0; i < pairs; ++i) {
    const std::int64_t row = args.positions[mrope_stream(args, i) * shape.tokens + token];
    const double cos = to_f32(static_cast<const T*>(args.cos)[row * pairs + i]);
    const double sin = to_f32(static_cast<const T*>(args.sin)[row * pairs + i]);
    const std::int64_t first = args.interleaved ? 2 * i : i;
    const std::int64_t second = args.interleaved ? 2 * i + 1 : i + pairs;
    const double u = to_f32(x[first]);
    const double v = to_f32(x[second]);
    y[first] = from_f32<T>(static_cast<float>(u * cos - v * sin));
    y[second] = from_f32<T>(static_cast<float>(u * sin + v * cos));
  }
  for (std::int64_t i = shape.rotary_dim; i < shape.head_dim; ++i) y[i] = x[i];
}

void scalar_tokens(const MropeArgs& args, std::int64_t begin, std::int64_t end) noexcept {
  with_float_type(args.type, [&](auto type) {
    for (std::int64_t token = begin; token < end; ++token) {
      for (std::int64_t head = 0; head < args.shape.heads; ++head) rotate_head<decltype(type)>(args, token, head);
    }
  });
}

}  // namespace

void mrope(Level level, const MropeArgs& args, Executor& executor) noexcept {
  const std::int64_t token_elements = args.shape.heads * args.shape.head_dim;
  for_row_pieces(executor, args.shape.tokens, token_elements, [&](std::int64_t begin, std::int64_t end) noexcept {
    switch (level) {
      case Level::scalar:
        return scalar_tokens(args, begin, end);
      case Level::avx2:
        return avx2::mrope_tokens(args, begin, end);
      case Level::avx512:
      case Level::amx:
        return avx512::mrope_tokens(args, begin, end);
    }
  });
}

}  // namespace sluice
