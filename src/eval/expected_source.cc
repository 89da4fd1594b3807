#include "eval/expected_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/float16.h"
#include "checkpoint/safetensors.h"

namespace sluice {
namespace {

template <typename Stored, typename Out>
void widen(const std::byte* from, std::span<Out> to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    Stored value;
    std::memcpy(&value, from + i * sizeof(Stored), sizeof(Stored));
    if constexpr (std::is_arithmetic_v<Stored>) {
      to[i] = static_cast<Out>(value);
    } else {
      to[i] = static_cast<Out>(to_f32(value));
    }
  }
}

// Logits rows of one sequence, in the file.
struct LogitsTable {
  const SafetensorsEntry* entry = nullptr;
  std::int64_t rows() const { return entry->view.shape[0]; }
  std::int64_t vocab() const { return entry->view.shape[1]; }
  std::vector<float> row(std::int64_t index) const {
    const TensorView& v = entry->view;
    std::vector<float> out(static_cast<std::size_t>(vocab()));
    const std::byte* from = v.bytes.data() + static_cast<std::size_t>(index * vocab()) * dtype_bytes(v.dtype);
    switch (v.dtype) {
      case DType::f64:
        widen<double>(from, std::span(out));
        break;
      case DType::f32:
        widen<float>(from, std::span(out));
        break;
      case DType::f16:
        widen<f16>(from, std::span(out));
        break;
      default:
        widen<bf16>(from, std::span(out));
        break;
    }
    return out;
  }
};

struct ExpectedSequence {
  LogitsTable logits;                        // row i belongs to the sequence's position i
  std::vector<std::int64_t> greedy;          // may be empty
  std::optional<LogitsTable> greedy_logits;  // row k chose greedy[k]
};

class Reader {
 public:
  explicit Reader(const SafetensorsFile& file) : file_(file), name_(file.path().string()) {}

  const SafetensorsEntry* find(const std::string& tensor) const { return file_.find(tensor); }

  std::vector<std::int64_t> integers(const std::string& tensor) const {
    const TensorView& v = file_.at(tensor).view;
    if (v.shape.size() != 1) fail("{}: {} has shape {}, expected one dimension", name_, tensor, to_string(v.shape));
    std::vector<std::int64_t> out(static_cast<std::size_t>(v.shape[0]));
    if (v.dtype == DType::i64) {
      widen<std::int64_t>(v.bytes.data(), std::span(out));
    } else if (v.dtype == DType::i32) {
      widen<std::int32_t>(v.bytes.data(), std::span(out));
    } else {
      fail("{}: {} has dtype {}, expected i64 or i32", name_, tensor, dtype_name(v.dtype));
    }
    return out;
  }

  // Checks shape, dtype and values; `vocab` is set by the first table and binds the others.
  LogitsTable table(const SafetensorsEntry& entry, std::size_t rows, std::int64_t& vocab) const {
    const TensorView& v = entry.view;
    if (v.shape.size() != 2 || v.shape[0] != static_cast<std::int64_t>(rows) || v.shape[1] <= 0 ||
        (vocab > 0 && v.shape[1] != vocab)) {
      fail("{}: {} has shape {}, expected [{}, {}]", name_, entry.name, to_string(v.shape), rows,
           vocab > 0 ? std::to_string(vocab) : "vocabulary");
    }
    if (v.dtype != DType::f64 && v.dtype != DType::f32 && v.dtype != DType::f16 && v.dtype != DType::bf16) {
      fail("{}: {} has dtype {}, expected f64, f32, f16 or bf16", name_, entry.name, dtype_name(v.dtype));
    }
    vocab = v.shape[1];
    const LogitsTable table{&entry};
    for (std::int64_t r = 0; r < table.rows(); ++r) {
      const std::vector<float> row = table.row(r);
      const auto bad = std::ranges::find_if(row, [](float x) { return !std::isfinite(x); });
      if (bad != row.end()) fail("{}: {}[{}, {}] is not finite", name_, entry.name, r, bad - row.begin());
    }
    return table;
  }

  void check_ids(const std::string& tensor, std::span<const std::int64_t> ids, std::int64_t vocab) const {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] >= vocab) {
        fail("{}: {}[{}] is {}, outside the {} entries of the logits", name_, tensor, i, ids[i], vocab);
      }
    }
  }

  std::vector<std::int64_t> positions(const std::string& tensor, std::size_t tokens) const {
    std::vector<std::int64_t> out;
    if (find(tensor) != nullptr) {
      out = integers(tensor);
    } else {
      for (std::size_t i = 0; i < tokens; ++i) out.push_back(static_cast<std::int64_t>(i));
    }
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (out[i] < 0 || out[i] >= static_cast<std::int64_t>(tokens)) {
        fail("{}: {}[{}] is {}, outside the {} tokens of its sequence", name_, tensor, i, out[i], tokens);
      }
      if (i > 0 && out[i] <= out[i - 1]) {
        fail("{}: {}[{}] is {} after {}: positions must ascend", name_, tensor, i, out[i], out[i - 1]);
      }
    }
    return out;
  }

 private:
  const SafetensorsFile& file_;
  std::string name_;
};

class ExpectedFile final : public ExpectedSource {
 public:
  explicit ExpectedFile(const std::filesystem::path& path) : file_(path) {
    const Reader reader(file_);
    while (reader.find(fmt::format("seq{}.input_ids", sequences_.size())) != nullptr) read_sequence(reader);
    if (sequences_.empty()) {
      fail("{}: no tensor seq0.input_ids: expected seqN.input_ids, seqN.logits_pos and seqN.logits", path.string());
    }
    refuse_unread(path);
  }

  std::string describe() const override { return fmt::format("logits in {}", file_.path().string()); }
  std::int64_t vocab() const override { return vocab_; }
  std::span<const TokenSequence> sequences() const override { return sequences_; }
  std::vector<LayerStateValues> states() override { return {}; }

  void start(const TokenSequence& sequence) override {
    sequence_ = &sequence;
    fed_ = 0;
    next_ = 0;
    // The sequence itself, or the sequence with its greedy continuation behind it.
    const auto found = std::ranges::find_if(sequences_, [&](const TokenSequence& known) {
      return std::ranges::equal(known.ids,
                                std::span(sequence.ids).first(std::min(known.ids.size(), sequence.ids.size()))) &&
             (known.ids.size() == sequence.ids.size() || continues(known, sequence));
    });
    known_ = found == sequences_.end() ? nullptr : &*found;
  }

  void feed(std::int64_t count, const PositionSink& sink) override {
    fed_ += count;
    const std::vector<std::int64_t>& wanted = sequence_->positions;
    for (; next_ < wanted.size() && wanted[next_] < fed_; ++next_) {
      if (known_ != nullptr) deliver(wanted[next_], sink);
    }
  }

  std::vector<std::int64_t> greedy(std::span<const std::int64_t> prompt, std::int64_t count) override {
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      if (!std::ranges::equal(sequences_[i].ids, prompt)) continue;
      std::vector<std::int64_t> tokens = expected_[i].greedy;
      tokens.resize(std::min(tokens.size(), static_cast<std::size_t>(std::max<std::int64_t>(count, 0))));
      return tokens;
    }
    return {};
  }

 private:
  bool continues(const TokenSequence& known, const TokenSequence& sequence) const {
    if (sequence.ids.size() < known.ids.size()) return false;
    const auto rest = std::span(sequence.ids).subspan(known.ids.size());
    const auto& greedy = expected_[static_cast<std::size_t>(&known - sequences_.data())].greedy;
    return rest.size() <= greedy.size() && std::ranges::equal(rest, std::span(greedy).first(rest.size()));
  }

  void deliver(std::int64_t position, const PositionSink& sink) const {
    const ExpectedSequence& e = expected_[static_cast<std::size_t>(known_ - sequences_.data())];
    const auto at = std::ranges::lower_bound(known_->positions, position);
    if (at != known_->positions.end() && *at == position) {
      sink(position, e.logits.row(at - known_->positions.begin()));
    } else if (const std::int64_t step = position - static_cast<std::int64_t>(known_->ids.size()) + 1;
               e.greedy_logits && step >= 0 && step < e.greedy_logits->rows()) {
      sink(position, e.greedy_logits->row(step));
    }
  }

  // Sequences count up from 0: one behind a gap would be left out silently.
  void refuse_unread(const std::filesystem::path& path) const {
    for (const SafetensorsEntry& entry : file_.entries()) {
      const std::size_t dot = entry.name.find('.');
      if (!entry.name.starts_with("seq") || dot == std::string::npos) continue;
      std::size_t number = 0;
      const char* const end = entry.name.data() + dot;
      const auto [rest, error] = std::from_chars(entry.name.data() + 3, end, number);
      if (error != std::errc() || rest != end || number < sequences_.size()) continue;
      fail("{}: {} is there, but seq{}.input_ids is not: sequences count up from seq0 without a gap", path.string(),
           entry.name, sequences_.size());
    }
  }

  void read_sequence(const Reader& reader) {
    const std::string name = fmt::format("seq{}", sequences_.size());
    TokenSequence sequence{name, reader.integers(name + ".input_ids"), {}, {}};
    if (sequence.ids.empty()) fail("{}: {}.input_ids is empty", file_.path().string(), name);
    sequence.positions = reader.positions(name + ".logits_pos", sequence.ids.size());
    const SafetensorsEntry* logits = reader.find(name + ".logits_f64");
    if (logits == nullptr) logits = reader.find(name + ".logits");
    if (logits == nullptr) fail("{}: neither {}.logits_f64 nor {}.logits is there", file_.path().string(), name, name);
    ExpectedSequence expected{reader.table(*logits, sequence.positions.size(), vocab_), {}, {}};
    reader.check_ids(name + ".input_ids", sequence.ids, vocab_);
    if (reader.find(name + ".greedy_ids") != nullptr) {
      expected.greedy = reader.integers(name + ".greedy_ids");
      reader.check_ids(name + ".greedy_ids", expected.greedy, vocab_);
      if (const SafetensorsEntry* rows = reader.find(name + ".greedy_logits"); rows != nullptr) {
        expected.greedy_logits = reader.table(*rows, expected.greedy.size(), vocab_);
      }
    }
    sequences_.push_back(std::move(sequence));
    expected_.push_back(std::move(expected));
  }

  SafetensorsFile file_;
  std::int64_t vocab_ = 0;
  std::vector<TokenSequence> sequences_;
  std::vector<ExpectedSequence> expected_;  // [sequences]
  const TokenSequence* sequence_ = nullptr;
  const TokenSequence* known_ = nullptr;
  std::int64_t fed_ = 0;
  std::size_t next_ = 0;
};

}  // namespace

std::unique_ptr<ExpectedSource> open_expected(const std::filesystem::path& file) {
  return std::make_unique<ExpectedFile>(file);
}

}  // namespace sluice
