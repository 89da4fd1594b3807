#include "eval/company_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "base/float16.h"
#include "eval/verify.h"
#include "session/step.h"

namespace sluice {
namespace {

constexpr std::size_t kRows = 3;
constexpr std::size_t kOwn = 1;              // the row asked for
constexpr std::int64_t kCompanyTokens = 96;  // that a companion has at most; then another takes its place
// Tokens of the first and the third row, a step. Never fewer than two together: the runtime's own convolution takes empty
// rows, but no fewer tokens than rows.
constexpr std::int64_t kCompanyPieces[][2] = {{3, 0}, {0, 5}, {1, 1}, {8, 2}};

class CompanySource final : public LogitsSource {
 public:
  CompanySource(const Session& session, std::string location) : session_(session), location_(std::move(location)) {
    SLUICE_CHECK(session.manifest().layout == Layout::packed);
    const PortInfo* logits = session.output("logits");
    if (logits == nullptr) fail("{}: the graph has no output 'logits'", location_);
    logits_dtype_ = logits->dtype;
  }

  std::string describe() const override { return fmt::format("package {}, in a ragged batch", location_); }
  std::int64_t vocab() const override { return session_.manifest().model.vocab; }
  std::vector<LayerStateValues> states() override { return {}; }
  std::vector<std::int64_t> greedy(std::span<const std::int64_t>, std::int64_t) override { return {}; }

  void start(const TokenSequence& sequence) override {
    const Manifest& m = session_.manifest();
    sequence_ = &sequence;
    next_ = 0;
    steps_ = 0;
    std::int64_t company = kCompanyTokens;
    if (m.model.context_length > 0) company = std::min(company, m.model.context_length);
    ids_[kOwn] = sequence.ids;
    ids_[0] = random_ids(company, vocab());
    ids_[2] = random_ids(company - company / 3, vocab());
    past_ = {};
    allocate_states();
  }

  void feed(std::int64_t count, const PositionSink& sink) override {
    std::array<std::int64_t, kRows> lengths{};
    lengths[kOwn] = count;
    for (const std::size_t row : {std::size_t{0}, std::size_t{2}}) {
      const auto left = static_cast<std::int64_t>(ids_[row].size()) - past_[row];
      lengths[row] = kCompanyPieces[steps_ % std::size(kCompanyPieces)][row / 2];
      if (left < lengths[row]) replace(row);
      lengths[row] = std::min(lengths[row], static_cast<std::int64_t>(ids_[row].size()));
    }
    ++steps_;
    std::vector<std::int64_t> wanted;  // positions
    const std::vector<std::int64_t>& positions = sequence_->positions;
    for (; next_ < positions.size() && positions[next_] < past_[kOwn] + count; ++next_)
      wanted.push_back(positions[next_]);
    run(lengths, wanted, sink);
    for (std::size_t row = 0; row < kRows; ++row) past_[row] += lengths[row];
  }

 private:
  // Zero states for three rows, and pages for the longest of each.
  void allocate_states() {
    const Manifest& m = session_.manifest();
    const std::int64_t block_size = std::max<std::int64_t>(m.block_size, 1);
    max_blocks_ = 0;
    for (const auto& ids : ids_) {
      max_blocks_ = std::max(max_blocks_, (static_cast<std::int64_t>(ids.size()) + block_size - 1) / block_size);
    }
    const std::int64_t blocks = max_blocks_ * static_cast<std::int64_t>(kRows);
    // Page p of row r is block (max_blocks - 1 - p) * rows + r.
    block_table_.clear();
    for (std::size_t row = 0; row < kRows; ++row) {
      for (std::int64_t page = 0; page < max_blocks_; ++page) {
        const std::int64_t block =
            (max_blocks_ - 1 - page) * static_cast<std::int64_t>(kRows) + static_cast<std::int64_t>(row);
        block_table_.push_back(static_cast<std::int32_t>(block));
      }
    }
    const std::vector<StateInfo>& infos = session_.graph().states;
    state_shapes_.clear();
    state_bytes_.clear();
    for (const StateInfo& info : infos) {
      Shape shape = state_shape(info, {static_cast<std::int64_t>(kRows), 0, blocks, block_size});
      const auto bytes = byte_count(shape, info.dtype);
      if (!bytes) fail("{}: state '{}' of shape {} is too large", location_, info.input, to_string(shape));
      state_bytes_.emplace_back(*bytes);
      state_shapes_.push_back(std::move(shape));
    }
  }

  // A row's sequence ends and another begins in its place: no tokens behind it, states zero.
  void replace(std::size_t row) {
    past_[row] = 0;
    const std::vector<StateInfo>& infos = session_.graph().states;
    for (std::size_t i = 0; i < infos.size(); ++i) {
      if (infos[i].kind == StateKind::paged_kv) continue;
      const std::size_t bytes = state_bytes_[i].size() / kRows;
      std::fill_n(state_bytes_[i].begin() + static_cast<std::ptrdiff_t>(row * bytes), bytes, std::byte{0});
    }
  }

  void run(const std::array<std::int64_t, kRows>& lengths, std::span<const std::int64_t> wanted,
           const PositionSink& sink) {
    std::vector<std::int64_t> ids;
    std::vector<std::int32_t> offsets{0}, past, indices;
    for (std::size_t row = 0; row < kRows; ++row) {
      const auto begin = ids_[row].begin() + past_[row];
      ids.insert(ids.end(), begin, begin + lengths[row]);
      offsets.push_back(static_cast<std::int32_t>(ids.size()));
      past.push_back(static_cast<std::int32_t>(past_[row]));
    }
    for (const std::int64_t position : wanted) {
      indices.push_back(static_cast<std::int32_t>(offsets[kOwn] + position - past_[kOwn]));
    }
    const bool pruned = session_.manifest().prune_lm_head;
    if (pruned && indices.empty()) indices.push_back(0);
    const std::int64_t rows = static_cast<std::int64_t>(pruned ? indices.size() : ids.size());
    std::vector<std::byte> logits(static_cast<std::size_t>(rows * vocab()) * dtype_bytes(logits_dtype_));
    std::vector<StateBinding> states;
    const std::vector<StateInfo>& infos = session_.graph().states;
    for (std::size_t i = 0; i < infos.size(); ++i) {
      const TensorRef memory{infos[i].dtype, state_shapes_[i], state_bytes_[i].data(), state_bytes_[i].size()};
      states.push_back({memory, memory});
    }
    run_step(session_, PackedStep{.input_ids = ids,
                                  .cu_seqlens = offsets,
                                  .past_lengths = past,
                                  .block_table = block_table_,
                                  .logits_indices = indices,
                                  .states = states,
                                  .logits = {logits_dtype_, {rows, vocab()}, logits.data(), logits.size()}});
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const std::size_t row = pruned ? i : static_cast<std::size_t>(indices[i]);
      sink(wanted[i], widened(logits, row));
    }
  }

  std::vector<float> widened(std::span<const std::byte> logits, std::size_t row) const {
    std::vector<float> out(static_cast<std::size_t>(vocab()));
    const std::byte* from = logits.data() + row * out.size() * dtype_bytes(logits_dtype_);
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (logits_dtype_ == DType::f32) {
        std::memcpy(&out[i], from + i * sizeof(float), sizeof(float));
      } else {
        std::uint16_t bits = 0;
        std::memcpy(&bits, from + i * sizeof bits, sizeof bits);
        out[i] = logits_dtype_ == DType::f16 ? to_f32(f16{bits}) : to_f32(bf16{bits});
      }
    }
    return out;
  }

  const Session& session_;
  std::string location_;
  DType logits_dtype_ = DType::f32;
  const TokenSequence* sequence_ = nullptr;
  std::size_t next_ = 0;  // index into the sequence's positions
  std::size_t steps_ = 0;
  std::array<std::vector<std::int64_t>, kRows> ids_;
  std::array<std::int64_t, kRows> past_{};
  std::int64_t max_blocks_ = 0;
  std::vector<std::int32_t> block_table_;            // [rows, max_blocks]
  std::vector<Shape> state_shapes_;                  // [states]
  std::vector<std::vector<std::byte>> state_bytes_;  // [states]
};

}  // namespace

std::unique_ptr<LogitsSource> make_company_source(const Session& session, std::string location) {
  return std::make_unique<CompanySource>(session, std::move(location));
}

}  // namespace sluice
