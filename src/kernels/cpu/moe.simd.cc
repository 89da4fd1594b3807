#include <hwy/highway.h>

#include "kernels/cpu/moe_core.h"
#include "kernels/cpu/vector_math.h"

namespace sluice {
namespace SLUICE_LEVEL {
namespace {

// x (1 + tanh(u)) / 2 = x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3)
HWY_INLINE Floats gelu_tanh(Floats x) {
  const Floats cubic = hn::MulAdd(hn::Mul(all(0.044715f), hn::Mul(x, x)), x, x);
  return hn::Div(x, one_plus_exp_of_minus(hn::Mul(all(1.5957691216057308f), cubic)));
}

template <MoeActivation kActivation>
void gate_rows(const GateBlock& block) {
  for (std::int64_t r = 0; r < block.rows; ++r) {
    for (std::int64_t c = 0; c < block.cols; c += kLanes) {
      const std::int64_t left = block.cols - c;
      const Floats gate = load_up_to(block.gate + r * block.stride + c, left);
      const Floats up = load_up_to(block.up + r * block.stride + c, left);
      const Floats open = kActivation == MoeActivation::silu ? silu(gate) : gelu_tanh(gate);
      store_up_to(hn::Mul(open, up), block.gate + r * block.stride + c, left);
    }
  }
}

}  // namespace

void gate_block(const GateBlock& block) noexcept {
  return block.activation == MoeActivation::silu ? gate_rows<MoeActivation::silu>(block)
                                                 : gate_rows<MoeActivation::gelu_tanh>(block);
}

void mix_row(const MixRow& row) noexcept {
  for (std::int64_t c = 0; c < row.cols; c += kLanes) {
    const std::int64_t left = row.cols - c;
    Floats sum = zeros();
    for (std::int64_t r = 0; r < row.k; ++r) {
      const Floats part = load_up_to(row.parts + row.part[r] * row.cols + c, left);
      sum = hn::Add(sum, hn::Mul(all(row.scale[r]), part));
    }
    store_up_to(sum, row.y + c, left);
  }
}

}  // namespace SLUICE_LEVEL
}  // namespace sluice
