#include "session/sequence.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/float16.h"

namespace sluice {
namespace {

constexpr std::int64_t kLogitsBytes = std::int64_t{128} << 20;  // of one step
constexpr std::int64_t kDefaultPiece = 512;                     // tokens: enough rows to keep matrix products busy
constexpr std::int64_t kMaxVocab = std::int64_t{1} << 32;       // beyond any model: rows of it fit 64 bits
constexpr std::int64_t kGrowth = 256;                           // tokens that a cache grows by at least

bool is_kv(StateKind kind) noexcept { return kind == StateKind::paged_kv || kind == StateKind::growing_kv; }

const PortInfo& logits_port(const Session& session) {
  const PortInfo* port = session.output("logits");
  if (port == nullptr) fail("{}: the graph has no output 'logits'", session.graph().file);
  return *port;
}

void widen(const std::byte* from, DType dtype, std::span<float> to) {
  if (dtype == DType::f32) {
    std::memcpy(to.data(), from, to.size_bytes());
    return;
  }
  for (std::size_t i = 0; i < to.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, from + i * sizeof(bits), sizeof(bits));
    to[i] = dtype == DType::f16 ? to_f32(f16{bits}) : to_f32(bf16{bits});
  }
}

std::size_t bytes_of(const Shape& shape, DType dtype, const StateInfo& state) {
  const auto bytes = byte_count(shape, dtype);
  if (!bytes) fail("state '{}': shape {} is too large for memory", state.input, to_string(shape));
  return *bytes;
}

}  // namespace

Sequence::Sequence(const Session& session, const SequenceOptions& options) : session_(&session) {
  const Manifest& manifest = session.manifest();
  const PortInfo& logits = logits_port(session);
  if (!is_float_weight(logits.dtype))
    fail("{}: output 'logits' is {}; expected f32, f16 or bf16", session.graph().file, dtype_name(logits.dtype));
  const std::int64_t vocab = manifest.model.vocab;
  const std::int64_t entries = logits.shape.empty() ? -1 : logits.shape.back().value;
  if (vocab < 1 || vocab > kMaxVocab || (entries >= 0 && entries != vocab)) {
    fail("{}: model: vocab is {}, but output 'logits' of {} has {} entries; export again", kManifestFile, vocab,
         session.graph().file, entries < 0 ? "any number of" : std::to_string(entries));
  }
  const std::int64_t row_bytes = vocab * static_cast<std::int64_t>(dtype_bytes(logits.dtype));
  max_rows_ = std::max<std::int64_t>(kLogitsBytes / row_bytes, 1);
  max_piece_ = options.max_piece > 0 ? options.max_piece : kDefaultPiece;
  if (options.max_piece <= 0 && !manifest.prune_lm_head && max_rows_ < max_piece_) {
    const std::int64_t chunk = std::max<std::int64_t>(manifest.chunk_size, 1);
    max_piece_ = max_rows_ >= chunk ? max_rows_ / chunk * chunk : max_rows_;
  }
  row_.resize(static_cast<std::size_t>(manifest.model.vocab));
  states_.resize(session.graph().states.size());
  reserve(std::max<std::int64_t>(options.capacity, 1));
}

void Sequence::append(std::span<const std::int64_t> tokens, std::span<const std::int64_t> rows,
                      const LogitsSink& sink) {
  SLUICE_CHECK(std::is_sorted(rows.begin(), rows.end()));
  SLUICE_CHECK(rows.empty() || (rows.front() >= 0 && rows.back() < static_cast<std::int64_t>(tokens.size())));
  const std::int64_t context = session_->manifest().model.context_length;
  const std::int64_t count = static_cast<std::int64_t>(tokens.size());
  if (context > 0 && count > context - length_) {
    fail(
        "a sequence of {} tokens does not fit this package, which was exported for {}; export with a larger "
        "--max-length",
        length_ + count, context);
  }
  reserve(length_ + count);
  for (std::int64_t begin = 0; begin < count;) {
    const std::int64_t size = piece_length(begin, count, rows);
    std::vector<std::int32_t> wanted;  // within the piece
    for (; !rows.empty() && rows.front() < begin + size; rows = rows.subspan(1)) {
      wanted.push_back(static_cast<std::int32_t>(rows.front() - begin));
    }
    run_piece(tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size)), wanted);
    for (std::size_t i = 0; i < wanted.size(); ++i) deliver(begin + wanted[i], logits_row(wanted[i], i, size), sink);
    begin += size;
  }
}

std::vector<float> Sequence::append(std::span<const std::int64_t> tokens) {
  SLUICE_CHECK(!tokens.empty());
  std::vector<float> last;
  const std::int64_t row = static_cast<std::int64_t>(tokens.size()) - 1;
  append(tokens, {&row, 1},
         [&](std::int64_t, std::span<const float> logits) { last.assign(logits.begin(), logits.end()); });
  return last;
}

// Tokens of the next step. `rows` are those still wanted, counted as `begin` is.
std::int64_t Sequence::piece_length(std::int64_t begin, std::int64_t count,
                                    std::span<const std::int64_t> rows) const noexcept {
  const Manifest& manifest = session_->manifest();
  const std::int64_t size = std::min(count - begin, max_piece_);
  if (!manifest.prune_lm_head) return size;
  // A pruned dense graph gives the last token's logits alone; a pruned packed one those asked for, max_rows_ at most.
  const std::int64_t limit = manifest.layout == Layout::dense ? 1 : max_rows_;
  if (static_cast<std::int64_t>(rows.size()) < limit) return size;
  return std::min(size, rows[static_cast<std::size_t>(limit) - 1] + 1 - begin);
}

// Where in the logits of a step a token's row lies, when it is the `order`-th one wanted of a piece of `size` tokens.
std::int64_t Sequence::logits_row(std::int64_t token, std::size_t order, std::int64_t size) const noexcept {
  const Manifest& manifest = session_->manifest();
  if (!manifest.prune_lm_head) return token;
  if (manifest.layout == Layout::packed) return static_cast<std::int64_t>(order);
  return token - (size - 1);  // the only row, 0
}

void Sequence::run_piece(std::span<const std::int64_t> tokens, std::vector<std::int32_t> wanted) {
  const Manifest& manifest = session_->manifest();
  const PortInfo& logits = logits_port(*session_);
  const bool packed = manifest.layout == Layout::packed;
  const std::int64_t count = static_cast<std::int64_t>(tokens.size());
  if (wanted.empty())
    wanted.push_back(static_cast<std::int32_t>(count - 1));  // a step without rows is no use to any kernel
  const std::int64_t rows = !manifest.prune_lm_head ? count : packed ? static_cast<std::int64_t>(wanted.size()) : 1;
  const std::size_t bytes = static_cast<std::size_t>(rows * manifest.model.vocab) * dtype_bytes(logits.dtype);
  if (logits_.size() < bytes) logits_.resize(bytes);
  std::vector<StateBinding> states;
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const TensorRef memory{session_->graph().states[i].dtype, states_[i].shape, states_[i].bytes.data(),
                           states_[i].bytes.size()};
    states.push_back({memory, memory});
  }
  if (packed) {
    const std::int32_t offsets[] = {0, static_cast<std::int32_t>(count)};
    const std::int32_t past = static_cast<std::int32_t>(length_);
    run_step(*session_,
             PackedStep{.input_ids = tokens,
                        .cu_seqlens = offsets,
                        .past_lengths = {&past, 1},
                        .block_table = block_table_,
                        .logits_indices = wanted,
                        .states = states,
                        .logits = {logits.dtype, {rows, manifest.model.vocab}, logits_.data(), logits_.size()}});
  } else {
    run_step(*session_,
             DenseStep{.past_length = length_,
                       .input_ids = tokens,
                       .states = states,
                       .logits = {logits.dtype, {1, rows, manifest.model.vocab}, logits_.data(), logits_.size()}});
  }
  length_ += count;
}

void Sequence::deliver(std::int64_t row, std::int64_t slot, const LogitsSink& sink) {
  const DType dtype = logits_port(*session_).dtype;
  widen(logits_.data() + static_cast<std::size_t>(slot) * row_.size() * dtype_bytes(dtype), dtype, row_);
  sink(row, row_);
}

void Sequence::reset() {
  length_ = 0;
  for (std::size_t i = 0; i < states_.size(); ++i) {
    if (!is_kv(session_->graph().states[i].kind))
      std::fill(states_[i].bytes.begin(), states_[i].bytes.end(), std::byte{0});
  }
}

// Makes room for `tokens` in all. Caches at least double, so that a long decode copies each token a few times at most.
void Sequence::reserve(std::int64_t tokens) {
  if (tokens <= capacity_) return;
  const Manifest& manifest = session_->manifest();
  std::int64_t wanted = tokens;
  if (capacity_ > 0) wanted = std::max({tokens, 2 * capacity_, kGrowth});
  const std::int64_t block = std::max<std::int64_t>(manifest.block_size, 1);
  const std::int64_t blocks = (wanted + block - 1) / block;
  const StateExtents extents{1, wanted, blocks, block};
  for (std::size_t i = 0; i < states_.size(); ++i) grow(i, extents);
  block_table_.clear();
  for (std::int64_t b = 0; b < blocks; ++b) block_table_.push_back(static_cast<std::int32_t>(b));
  capacity_ = wanted;
}

void Sequence::grow(std::size_t index, const StateExtents& extents) {
  const StateInfo& info = session_->graph().states[index];
  Buffer& state = states_[index];
  Shape shape = state_shape(info, extents);
  if (shape == state.shape) return;
  if (is_kv(info.kind) && shape.size() != 4)
    fail("state '{}': shape {} has not four extents", info.input, to_string(shape));
  if (info.kind == StateKind::paged_kv && shape[0] < extents.blocks) {
    fail("state '{}': a sequence of {} tokens needs {} blocks, the graph has {}; export with more --kv-blocks",
         info.input, extents.tokens, extents.blocks, shape[0]);
  }
  std::vector<std::byte> bytes(bytes_of(shape, info.dtype, info));
  if (info.kind == StateKind::growing_kv && !state.bytes.empty()) {
    const std::size_t heads = static_cast<std::size_t>(shape[1]);
    const std::size_t before = state.bytes.size() / heads, after = bytes.size() / heads;
    for (std::size_t head = 0; head < heads; ++head)
      std::memcpy(bytes.data() + head * after, state.bytes.data() + head * before, before);
  } else {
    std::copy(state.bytes.begin(), state.bytes.end(), bytes.begin());  // blocks keep their places
  }
  state.shape = std::move(shape);
  state.bytes = std::move(bytes);
}

Sequence::State Sequence::state(std::size_t index) const {
  SLUICE_CHECK(index < states_.size());
  const StateInfo& info = session_->graph().states[index];
  const Buffer& buffer = states_[index];
  std::vector<float> raw(static_cast<std::size_t>(element_count(buffer.shape).value()));
  widen(buffer.bytes.data(), info.dtype, raw);
  const Shape& s = buffer.shape;
  if (info.kind == StateKind::conv) return {{s.begin() + 1, s.end()}, std::move(raw)};
  const bool key_major = session_->manifest().recurrence == Recurrence::linear_attention;
  if (info.kind == StateKind::recurrent && key_major) return {{s.begin() + 1, s.end()}, std::move(raw)};
  State out;
  if (info.kind == StateKind::recurrent) {  // [1, heads, dv, dk]
    out.shape = {s[1], s[3], s[2]};
    for (std::int64_t head = 0; head < s[1]; ++head) {
      for (std::int64_t k = 0; k < s[3]; ++k) {
        for (std::int64_t v = 0; v < s[2]; ++v)
          out.values.push_back(raw[static_cast<std::size_t>((head * s[2] + v) * s[3] + k)]);
      }
    }
    return out;
  }
  const bool paged =
      info.kind == StateKind::paged_kv;  // [blocks, block_size, heads, dim], else [1, heads, capacity, dim]
  const std::int64_t heads = paged ? s[2] : s[1];
  out.shape = {heads, length_, s[3]};
  for (std::int64_t head = 0; head < heads; ++head) {
    for (std::int64_t t = 0; t < length_; ++t) {
      const std::int64_t row = paged ? t * heads + head : head * s[2] + t;  // block b holds tokens b * block_size on
      const float* from = raw.data() + row * s[3];
      out.values.insert(out.values.end(), from, from + s[3]);
    }
  }
  return out;
}

std::size_t Sequence::state_bytes() const noexcept {
  std::size_t total = 0;
  for (const Buffer& state : states_) total += state.bytes.size();
  return total;
}

}  // namespace sluice
