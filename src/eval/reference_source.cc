#include "eval/reference_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "reference/model.h"

namespace sluice {
namespace {

constexpr std::int64_t kHeadBytes = 32 << 20;   // of logits computed at once
constexpr std::int64_t kKeptBytes = 128 << 20;  // of logits kept for the next procedure

template <typename T>
std::vector<float> narrowed(std::span<const T> values) {
  return {values.begin(), values.end()};
}

// [rows, cols] -> [cols, rows]: conv states have channels first.
template <typename T>
std::vector<float> transposed(const reference::Rows<T>& rows) {
  std::vector<float> out;
  out.reserve(rows.values().size());
  for (std::int64_t c = 0; c < rows.cols(); ++c) {
    for (std::int64_t r = 0; r < rows.rows(); ++r)
      out.push_back(static_cast<float>(rows[r][static_cast<std::size_t>(c)]));
  }
  return out;
}

// [tokens, heads * dim] -> [heads, tokens, dim]
template <typename T>
std::vector<float> heads_first(const reference::Rows<T>& rows, std::int64_t heads) {
  const auto dim = static_cast<std::size_t>(rows.cols() / heads);
  std::vector<float> out;
  out.reserve(rows.values().size());
  for (std::size_t h = 0; h < static_cast<std::size_t>(heads); ++h) {
    for (std::int64_t t = 0; t < rows.rows(); ++t) {
      const auto head = rows[t].subspan(h * dim, dim);
      out.insert(out.end(), head.begin(), head.end());
    }
  }
  return out;
}

template <typename T>
class ReferenceSource final : public LogitsSource {
 public:
  ReferenceSource(const ModelSource& model, const ReferenceOptions& options, Executor& executor)
      : source_(model),
        options_(options),
        model_(model.config, model.weights, executor, {options.qk_norm_epsilon, options.num_layers}) {}

  std::string describe() const override {
    return fmt::format("reference of {} in {}, {} of {} layers, q/k epsilon {:g}",
                       source_.checkpoint.directory().string(), std::is_same_v<T, double> ? "f64" : "f32",
                       model_.layers(), source_.config.layers, options_.qk_norm_epsilon);
  }
  std::int64_t vocab() const override { return source_.config.vocab; }

  void start(const TokenSequence& sequence) override {
    fed_ = next_ = 0;
    if (sequence.ids == ids_ && sequence.positions == positions_) return;
    ids_.clear();  // nothing is known until the pass below is through
    compute(sequence);
    ids_ = sequence.ids;
    positions_ = sequence.positions;
  }

  void feed(std::int64_t count, const PositionSink& sink) override {
    fed_ += count;
    const auto vocab_size = static_cast<std::size_t>(vocab());
    const auto end = std::ranges::lower_bound(positions_, fed_) - positions_.begin();
    for (; next_ < end; ++next_) {
      if (next_ < first_row_ || next_ >= first_row_ + rows_known()) compute_rows(next_);
      const auto at = static_cast<std::size_t>(next_ - first_row_) * vocab_size;
      sink(positions_[static_cast<std::size_t>(next_)], std::span(logits_).subspan(at, vocab_size));
    }
  }

  std::vector<LayerStateValues> states() override {
    SLUICE_CHECK(fed_ == state_.tokens);
    const HybridConfig& c = source_.config;
    std::vector<LayerStateValues> out;
    for (std::int64_t layer = 0; layer < model_.layers(); ++layer) {
      const reference::LayerState<T>& s = state_.layers[static_cast<std::size_t>(layer)];
      if (c.is_linear(layer)) {
        out.push_back({layer, "conv", {c.conv_dim(), c.conv_kernel - 1}, transposed(s.conv)});
        out.push_back(
            {layer, "recurrent", {c.linear_v_heads, c.linear_k_dim, c.linear_v_dim}, narrowed(std::span(s.recurrent))});
      } else {
        const Shape shape{c.kv_heads, s.keys.rows(), c.head_dim};
        out.push_back({layer, "key", shape, heads_first(s.keys, c.kv_heads)});
        out.push_back({layer, "value", shape, heads_first(s.values, c.kv_heads)});
      }
    }
    return out;
  }

  std::vector<std::int64_t> greedy(std::span<const std::int64_t> prompt, std::int64_t count) override {
    std::vector<std::int64_t> tokens;
    reference::State<T> state = model_.start();
    reference::Rows<T> hidden = model_.forward(prompt, state);
    while (hidden.rows() > 0) {
      reference::Rows<T> last(1, hidden.cols());
      std::ranges::copy(hidden[hidden.rows() - 1], last[0].begin());
      const reference::Rows<T> logits = model_.head(last);
      tokens.push_back(argmax(narrowed(logits[0])));
      if (static_cast<std::int64_t>(tokens.size()) >= count || tokens.back() < 0) break;
      hidden = model_.forward(std::span(tokens).last(1), state);
    }
    return tokens;
  }

 private:
  std::int64_t rows_known() const { return static_cast<std::int64_t>(logits_.size()) / vocab(); }

  // Logits of positions from `row` on: behind those known already as long as memory allows, else in their place.
  void compute_rows(std::int64_t row) {
    const std::int64_t at_once = std::max<std::int64_t>(1, kHeadBytes / static_cast<std::int64_t>(sizeof(T)) / vocab());
    const std::int64_t rows = std::min(at_once, hidden_.rows() - row);
    const std::int64_t kept_bytes = (rows_known() + rows) * vocab() * static_cast<std::int64_t>(sizeof(float));
    if (row != first_row_ + rows_known() || kept_bytes > kKeptBytes) {
      logits_.clear();
      first_row_ = row;
    }
    reference::Rows<T> hidden(rows, hidden_.cols());
    for (std::int64_t r = 0; r < rows; ++r) std::ranges::copy(hidden_[row + r], hidden[r].begin());
    const reference::Rows<T> computed = model_.head(hidden);
    logits_.insert(logits_.end(), computed.values().begin(), computed.values().end());
  }

  // Runs the whole sequence in pieces and keeps the hidden states of the positions asked for, and the final state.
  void compute(const TokenSequence& sequence) {
    constexpr std::size_t kPiece = 256;
    logits_.clear();
    first_row_ = 0;
    state_ = model_.start();
    hidden_ = reference::Rows<T>(static_cast<std::int64_t>(sequence.positions.size()), source_.config.hidden);
    std::size_t next = 0;
    for (std::size_t first = 0; first < sequence.ids.size(); first += kPiece) {
      const std::size_t count = std::min(kPiece, sequence.ids.size() - first);
      const reference::Rows<T> hidden = model_.forward(std::span(sequence.ids).subspan(first, count), state_);
      for (; next < sequence.positions.size(); ++next) {
        const std::int64_t row = sequence.positions[next] - static_cast<std::int64_t>(first);
        if (row >= hidden.rows()) break;
        std::ranges::copy(hidden[row], hidden_[static_cast<std::int64_t>(next)].begin());
      }
    }
  }

  const ModelSource& source_;
  ReferenceOptions options_;
  reference::Model<T> model_;
  std::vector<std::int64_t> ids_, positions_;  // of the sequence computed
  reference::Rows<T> hidden_;                  // [positions, hidden]
  reference::State<T> state_;                  // after all ids
  std::vector<float> logits_;                  // [rows, vocab] of the positions from first_row_ on
  std::int64_t first_row_ = 0;                 // index into positions_
  std::int64_t fed_ = 0;                       // tokens
  std::int64_t next_ = 0;                      // index into positions_
};

}  // namespace

std::unique_ptr<LogitsSource> make_reference_source(const ModelSource& model, const ReferenceOptions& options,
                                                    Executor& executor) {
  if (options.single_precision) return std::make_unique<ReferenceSource<float>>(model, options, executor);
  return std::make_unique<ReferenceSource<double>>(model, options, executor);
}

}  // namespace sluice
