#include <cstring>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/rotary_math.h"
#include "kernels/cpu/row_kernels.h"

namespace sluice::SLUICE_LEVEL {
namespace {

constexpr std::int64_t kPairsAtOnce = 512;

// cos and sin of one token's frequencies first .. first + count - 1, each from its stream's table row, as f32.
template <typename T>
void gather_angles(const MropeArgs& args, std::int64_t token, std::int64_t first, std::int64_t count, float* cos,
                   float* sin) {
  const MropeShape& shape = args.shape;
  const std::int64_t pairs = shape.rotary_dim / 2;
  HWY_ALIGN T chosen[2][kPairsAtOnce];
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = args.positions[mrope_stream(args, first + i) * shape.tokens + token];
    chosen[0][i] = static_cast<const T*>(args.cos)[row * pairs + first + i];
    chosen[1][i] = static_cast<const T*>(args.sin)[row * pairs + first + i];
  }
  for (std::int64_t i = 0; i < count; i += kLanes) {
    store_up_to(load_up_to(chosen[0] + i, count - i), cos + i, count - i);
    store_up_to(load_up_to(chosen[1] + i, count - i), sin + i, count - i);
  }
}

template <typename T>
void rotate_token(const MropeArgs& args, std::int64_t token) {
  const MropeShape& shape = args.shape;
  const std::int64_t pairs = shape.rotary_dim / 2;
  HWY_ALIGN float cos[kPairsAtOnce];
  HWY_ALIGN float sin[kPairsAtOnce];
  for (std::int64_t first = 0; first < pairs; first += kPairsAtOnce) {
    const std::int64_t count = pairs - first < kPairsAtOnce ? pairs - first : kPairsAtOnce;
    gather_angles<T>(args, token, first, count, cos, sin);
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      const std::int64_t offset = token * args.token_stride + head * args.head_stride;
      const T* x = static_cast<const T*>(args.input) + offset;
      T* y = static_cast<T*>(args.output) + offset;
      if (args.interleaved) {
        rotate_interleaved(x + 2 * first, y + 2 * first, cos, sin, count);
      } else {
        rotate_halves<T>({x + first, x + pairs + first}, {y + first, y + pairs + first}, cos, sin, count);
      }
    }
  }
  const std::int64_t rest = shape.head_dim - shape.rotary_dim;
  if (rest == 0 || args.input == args.output) return;
  for (std::int64_t head = 0; head < shape.heads; ++head) {
    const std::int64_t offset = token * args.token_stride + head * args.head_stride + shape.rotary_dim;
    std::memcpy(static_cast<T*>(args.output) + offset, static_cast<const T*>(args.input) + offset,
                static_cast<std::size_t>(rest) * sizeof(T));
  }
}

}  // namespace

void mrope_tokens(const MropeArgs& args, std::int64_t begin, std::int64_t end) noexcept {
  with_float_type(args.type, [&](auto type) {
    for (std::int64_t token = begin; token < end; ++token) rotate_token<decltype(type)>(args, token);
  });
}

}  // namespace sluice::SLUICE_LEVEL
