#include "tests/support/paged_attention_node.h"

#include <cmath>

namespace sluice::ops {
namespace {

// Row b's blocks, backwards and apart: column c lies in block (columns - 1 - c) * rows + b + 1; the unused ones are -1.
TestTensor block_table(const PagedCase& c) {
  std::vector<std::int32_t> table;
  for (std::int64_t b = 0; b < c.rows(); ++b) {
    const auto row = static_cast<std::size_t>(b);
    const std::int64_t length = c.past[row] + c.offsets[row + 1] - c.offsets[row];
    for (std::int64_t column = 0; column < c.columns(); ++column) {
      const bool used = column * c.block_size < length;
      table.push_back(used ? static_cast<std::int32_t>((c.columns() - 1 - column) * c.rows() + b + 1) : -1);
    }
  }
  return i32_tensor({c.rows(), c.columns()}, table);
}

TestTensor rotary_table(std::int64_t rows, std::int64_t half, bool sine) {
  TestTensor table = make_tensor(DType::f32, {rows, half});
  for (std::int64_t p = 0; p < rows; ++p) {
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle =
          static_cast<double>(p) * std::pow(100.0, -static_cast<double>(i) / static_cast<double>(half));
      table.data<float>()[p * half + i] = static_cast<float>(sine ? std::sin(angle) : std::cos(angle));
    }
  }
  return table;
}

void add_indices(const PagedCase& c, NodeCase& node) {
  node.inputs[5] = i32_tensor({c.rows() + 1}, c.offsets);
  node.inputs[6] = i32_tensor({c.rows()}, c.past);
  node.inputs[7] = block_table(c);
  if (c.slots) {
    const std::vector<std::int32_t> table = to_ints(*node.inputs[7]);
    std::vector<std::int32_t> slots;
    for (std::int64_t b = 0; b < c.rows(); ++b) {
      const auto row = static_cast<std::size_t>(b);
      for (std::int32_t t = c.offsets[row]; t < c.offsets[row + 1]; ++t) {
        const std::int64_t p = c.past[row] + t - c.offsets[row];
        const std::int32_t block = table[static_cast<std::size_t>(b * c.columns() + p / c.block_size)];
        slots.push_back(static_cast<std::int32_t>(block * c.block_size + p % c.block_size));
      }
    }
    node.inputs[10] = i32_tensor({c.tokens()}, slots);
  }
  if (c.metadata) node.inputs[16] = i32_tensor({3}, {1, 1, 0});
}

// The definition in double, one token at a time, each in the order split, norm, rotary, write, attend.
class Reference {
 public:
  Reference(const PagedCase& c, const NodeCase& node) : c_(c), node_(node) {
    keys_ = doubles(*node.inputs[3]);
    values_ = doubles(*node.inputs[4]);
    table_ = to_ints(*node.inputs[7]);
  }

  std::vector<double> run() {
    const std::int64_t tokens = c_.tokens();
    std::vector<double> query = heads(0, c_.heads, 0);
    std::vector<double> key = c_.fused ? heads(0, c_.kv_heads, c_.heads * c_.head_dim) : heads(1, c_.kv_heads, 0);
    std::vector<double> value =
        c_.fused ? heads(0, c_.kv_heads, (c_.heads + c_.kv_heads) * c_.head_dim) : heads(2, c_.kv_heads, 0);
    std::vector<double> output(static_cast<std::size_t>(tokens * c_.heads * c_.head_dim));
    for (std::int64_t b = 0; b < c_.rows(); ++b) {
      const auto row = static_cast<std::size_t>(b);
      for (std::int64_t t = c_.offsets[row]; t < c_.offsets[row + 1]; ++t) {
        const std::int64_t p = c_.past[row] + t - c_.offsets[row];
        prepare(query, t, c_.heads, p, 12);
        prepare(key, t, c_.kv_heads, p, 13);
        for (std::int64_t i = 0; i < c_.kv_heads * c_.head_dim; ++i) {
          keys_[at(b, p) + static_cast<std::size_t>(i)] =
              rounded(key[flat(t, c_.kv_heads) + static_cast<std::size_t>(i)]);
          values_[at(b, p) + static_cast<std::size_t>(i)] =
              rounded(value[flat(t, c_.kv_heads) + static_cast<std::size_t>(i)]);
        }
        for (std::int64_t h = 0; h < c_.heads; ++h) attend(b, t, p, h, query, output);
      }
    }
    return output;
  }

  const std::vector<double>& keys() const { return keys_; }
  const std::vector<double>& values() const { return values_; }

 private:
  static std::vector<double> doubles(const TestTensor& tensor) {
    const std::vector<float> values = to_floats(tensor);
    return {values.begin(), values.end()};
  }

  std::size_t flat(std::int64_t t, std::int64_t heads) const {
    return static_cast<std::size_t>(t * heads * c_.head_dim);
  }

  std::size_t at(std::int64_t b, std::int64_t p) const {
    const std::int64_t block = table_[static_cast<std::size_t>(b * c_.columns() + p / c_.block_size)];
    return static_cast<std::size_t>((block * c_.block_size + p % c_.block_size) * c_.kv_heads * c_.head_dim);
  }

  double rounded(double x) const {
    return static_cast<double>(to_floats(cast(f32_tensor({1}, {static_cast<float>(x)}), c_.cache))[0]);
  }

  // [tokens, heads, head_dim] out of columns [first, ...) of an input.
  std::vector<double> heads(std::size_t input, std::int64_t count, std::int64_t first) const {
    const std::vector<float> all = to_floats(*node_.inputs[input]);
    const std::int64_t width = node_.inputs[input]->shape[1];
    std::vector<double> result;
    for (std::int64_t t = 0; t < c_.tokens(); ++t) {
      for (std::int64_t i = 0; i < count * c_.head_dim; ++i) {
        result.push_back(static_cast<double>(all[static_cast<std::size_t>(t * width + first + i)]));
      }
    }
    return result;
  }

  void prepare(std::vector<double>& x, std::int64_t t, std::int64_t count, std::int64_t p, std::size_t norm) const {
    for (std::int64_t h = 0; h < count; ++h) {
      double* head = x.data() + flat(t, count) + static_cast<std::size_t>(h * c_.head_dim);
      if (c_.norms) {
        const std::vector<float> weight = to_floats(*node_.inputs[norm]);
        double sum = 0;
        for (std::int64_t i = 0; i < c_.head_dim; ++i) sum += head[i] * head[i];
        const double inverse = 1 / std::sqrt(sum / static_cast<double>(c_.head_dim) + 1e-6);
        for (std::int64_t i = 0; i < c_.head_dim; ++i) {
          head[i] *= inverse * static_cast<double>(weight[static_cast<std::size_t>(i)]);
        }
      }
      const std::int64_t half = c_.rotary_dim / 2;
      if (half == 0) continue;
      const std::vector<float> cosines = to_floats(*node_.inputs[8]);
      const std::vector<float> sines = to_floats(*node_.inputs[9]);
      for (std::int64_t i = 0; i < half; ++i) {
        double& u = head[c_.rotary_offset + (c_.interleaved ? 2 * i : i)];
        double& v = head[c_.rotary_offset + (c_.interleaved ? 2 * i + 1 : i + half)];
        const double cosine = static_cast<double>(cosines[static_cast<std::size_t>(p * half + i)]);
        const double sine = static_cast<double>(sines[static_cast<std::size_t>(p * half + i)]);
        const double turned = u * cosine - v * sine;
        v = u * sine + v * cosine;
        u = turned;
      }
    }
  }

  void attend(std::int64_t b, std::int64_t t, std::int64_t p, std::int64_t h, const std::vector<double>& query,
              std::vector<double>& output) const {
    const std::int64_t kv = h / (c_.heads / c_.kv_heads) * c_.head_dim;
    const double scale =
        c_.scale != 0 ? static_cast<double>(c_.scale) : 1 / std::sqrt(static_cast<double>(c_.head_dim));
    const double* q = query.data() + flat(t, c_.heads) + static_cast<std::size_t>(h * c_.head_dim);
    double* out = output.data() + flat(t, c_.heads) + static_cast<std::size_t>(h * c_.head_dim);
    const std::int64_t first = c_.window > 0 ? std::max<std::int64_t>(0, p - c_.window + 1) : 0;
    double denominator =
        c_.sink ? std::exp(static_cast<double>(to_floats(*node_.inputs[11])[static_cast<std::size_t>(h)])) : 0;
    for (std::int64_t j = first; j <= p; ++j) {
      const double* k = keys_.data() + at(b, j) + kv;
      double score = 0;
      for (std::int64_t i = 0; i < c_.head_dim; ++i) score += q[i] * k[i];
      score *= scale;
      if (c_.softcap > 0) score = static_cast<double>(c_.softcap) * std::tanh(score / static_cast<double>(c_.softcap));
      const double weight = std::exp(score);
      denominator += weight;
      for (std::int64_t i = 0; i < c_.head_dim; ++i)
        out[i] += weight * values_[at(b, j) + static_cast<std::size_t>(kv + i)];
    }
    for (std::int64_t i = 0; i < c_.head_dim; ++i) out[i] /= denominator;
  }

  const PagedCase& c_;
  const NodeCase& node_;
  std::vector<double> keys_;
  std::vector<double> values_;
  std::vector<std::int32_t> table_;
};

TestTensor narrowed(const std::vector<double>& values, const Shape& shape) {
  std::vector<float> floats;
  for (const double v : values) floats.push_back(static_cast<float>(v));
  return f32_tensor(shape, floats);
}

}  // namespace

NodeCase make_paged(const PagedCase& c) {
  Draw draw(23);
  const std::int64_t width = c.heads * c.head_dim;
  const std::int64_t kv_width = c.kv_heads * c.head_dim;
  NodeCase node;
  node.op = "PagedAttention";
  node.inputs.resize(17);
  if (c.fused) {
    node.inputs[0] = cast(draw.tensor({c.tokens(), width + 2 * kv_width}, -1, 1), c.dtype);
  } else {
    node.inputs[0] = cast(draw.tensor({c.tokens(), width}, -1, 1), c.dtype);
    node.inputs[1] = cast(draw.tensor({c.tokens(), kv_width}, -1, 1), c.dtype);
    node.inputs[2] = cast(draw.tensor({c.tokens(), kv_width}, -1, 1), c.dtype);
  }
  const Shape cache{c.blocks(), c.block_size, c.kv_heads, c.head_dim};
  node.inputs[3] = cast(draw.tensor(cache, -1, 1), c.cache);
  node.inputs[4] = cast(draw.tensor(cache, -1, 1), c.cache);
  add_indices(c, node);
  if (c.rotary_dim > 0) {
    node.inputs[8] = cast(rotary_table(64, c.rotary_dim / 2, false), c.dtype);
    node.inputs[9] = cast(rotary_table(64, c.rotary_dim / 2, true), c.dtype);
  }
  if (c.sink) node.inputs[11] = cast(draw.tensor({c.heads}, -1, 1), c.dtype);
  if (c.norms) {
    node.inputs[12] = cast(draw.tensor({c.head_dim}, 0.5f, 1.5f), c.dtype);
    node.inputs[13] = cast(draw.tensor({c.head_dim}, 0.5f, 1.5f), c.dtype);
  }
  node.attributes = {{"num_heads", c.heads},
                     {"kv_num_heads", c.kv_heads},
                     {"scale", c.scale},
                     {"softcap", c.softcap},
                     {"local_window_size", c.window},
                     {"do_rotary", std::int64_t{c.rotary_dim > 0}},
                     {"rotary_interleaved", std::int64_t{c.interleaved}},
                     {"rotary_offset", c.rotary_offset}};
  node.outputs = {OutputSpec{c.dtype, 2}, OutputSpec{c.cache, 4}, OutputSpec{c.cache, 4}};
  return node;
}

PagedAnswer define_paged(const PagedCase& c, const NodeCase& node) {
  Reference reference(c, node);
  const std::vector<double> output = reference.run();
  return {narrowed(output, {c.tokens(), c.heads * c.head_dim}), narrowed(reference.keys(), node.inputs[3]->shape),
          narrowed(reference.values(), node.inputs[4]->shape)};
}

}  // namespace sluice::ops
