#include "graph/rope.h"

#include <cmath>
#include <cstring>

#include "opset/operators.h"

namespace sluice {
namespace {

Value add_table(DecoderContext& c, std::string name, double (*function)(double)) {
  const std::vector<double> frequencies = c.config.rope.inverse_frequency;
  const double factor = c.config.rope.attention_factor;
  const auto fill = [frequencies, factor, function](std::int64_t first_row, std::span<std::byte> out) {
    const std::size_t columns = frequencies.size();
    for (std::size_t i = 0; i * sizeof(float) < out.size(); ++i) {
      const std::size_t row = i / columns;
      const double position = static_cast<double>(first_row) + static_cast<double>(row);
      const auto value = static_cast<float>(factor * function(position * frequencies[i % columns]));
      std::memcpy(&out[i * sizeof(float)], &value, sizeof(value));
    }
  };
  return c.g.graph().add_initializer(name, DType::f32, {c.plan.max_length, std::ssize(frequencies)},
                                     TableRecipe{name, fill});
}

}  // namespace

void add_rotary_tables(DecoderContext& c) {
  if (c.config.rope.inverse_frequency.empty()) return;
  c.in.cos_table = add_table(c, "cos_table", [](double x) { return std::cos(x); });
  c.in.sin_table = add_table(c, "sin_table", [](double x) { return std::sin(x); });
}

Value rotate_heads(DecoderContext& c, std::string_view label, Value x) {
  const auto whole = c.g.scope(label);
  const std::int64_t heads = c.g.shape(x)[1].value;
  const std::int64_t width = heads * c.g.shape(x)[2].value;
  // The operators take [batch, tokens, width]; packed tokens are one batch.
  const Value rows = c.dense() ? c.to_rows("rows", x) : c.g.reshape("rows", x, {1, -1, width});
  Value rotated = rows;
  if (c.in.cos_table) {
    const bool mrope = c.plan.rope == RopeForm::mrotary;
    const auto& sections = c.config.rope.mrope_section;
    std::vector<Attribute> attributes{{"interleaved", std::int64_t{0}},
                                      {"is_packed_batching", std::int64_t{c.dense() ? 0 : 1}},
                                      {"num_heads", heads},
                                      {"rotary_embedding_dim", c.config.rope.rotary_dim()}};
    if (mrope) {
      attributes.push_back({"mrope_layout", std::int64_t{c.config.rope.mrope_interleaved ? 1 : 0}});
      attributes.push_back({"mrope_section", std::vector<std::int64_t>(sections.begin(), sections.end())});
    }
    const Value wide = c.g.cast("wide", rows, DType::f32);
    rotated = c.g.emit(mrope ? kMRotaryEmbedding : kRotaryEmbedding, "",
                       {wide, c.in.position_ids, c.in.cos_table, c.in.sin_table}, std::move(attributes));
    rotated = c.g.cast("narrow", rotated, c.plan.activation);
  }
  return c.dense() ? rotated : c.g.reshape("tokens", rotated, {-1, width});
}

}  // namespace sluice
