#include "eval/package_source.h"

#include <fmt/format.h>

#include <algorithm>

#include "session/sequence.h"

namespace sluice {
namespace {

class PackageSource final : public LogitsSource {
 public:
  PackageSource(const Session& session, std::string location)
      : session_(session), location_(std::move(location)), sequence_(session, {.max_piece = INT32_MAX}) {}

  std::string describe() const override {
    const Manifest& m = session_.manifest();
    return fmt::format("package {}: {}, {}, {} gates, {}, for {}; onnxruntime {}", location_, name_of(m.layout),
                       name_of(m.recurrence), name_of(m.gates), dtype_name(m.activation), m.target, runtime_version());
  }
  std::int64_t vocab() const override { return session_.manifest().model.vocab; }

  void start(const TokenSequence& sequence) override {
    tokens_ = &sequence;
    next_ = 0;
    sequence_.reset();
  }

  void feed(std::int64_t count, const PositionSink& sink) override {
    const std::int64_t first = sequence_.length();
    const auto ids = std::span(tokens_->ids).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
    std::vector<std::int64_t> rows;
    for (; next_ < tokens_->positions.size() && tokens_->positions[next_] < first + count; ++next_) {
      rows.push_back(tokens_->positions[next_] - first);
    }
    sequence_.append(ids, rows, [&](std::int64_t row, std::span<const float> logits) { sink(first + row, logits); });
  }

  std::vector<LayerStateValues> states() override {
    const std::vector<StateInfo>& infos = session_.graph().states;
    std::vector<LayerStateValues> out;
    for (std::size_t i = 0; i < infos.size(); ++i) {
      Sequence::State state = sequence_.state(i);
      out.push_back({infos[i].layer, kind(infos, i), std::move(state.shape), std::move(state.values)});
    }
    return out;
  }

  std::vector<std::int64_t> greedy(std::span<const std::int64_t> prompt, std::int64_t count) override {
    sequence_.reset();
    std::vector<std::int64_t> tokens;
    std::span<const std::int64_t> fed = prompt;
    while (static_cast<std::int64_t>(tokens.size()) < count) {
      tokens.push_back(argmax(sequence_.append(fed)));
      if (tokens.back() < 0) break;
      fed = std::span(tokens).last(1);
    }
    return tokens;
  }

 private:
  // The two rows of a layer's KV state are key and value, in this order.
  static std::string kind(const std::vector<StateInfo>& infos, std::size_t index) {
    const StateInfo& info = infos[index];
    if (info.kind == StateKind::conv || info.kind == StateKind::recurrent) return std::string(name_of(info.kind));
    const bool second = std::any_of(infos.begin(), infos.begin() + static_cast<std::ptrdiff_t>(index),
                                    [&](const StateInfo& s) { return s.layer == info.layer && s.kind == info.kind; });
    return second ? "value" : "key";
  }

  const Session& session_;
  std::string location_;
  Sequence sequence_;
  const TokenSequence* tokens_ = nullptr;
  std::size_t next_ = 0;  // index into tokens_->positions
};

}  // namespace

std::unique_ptr<LogitsSource> make_package_source(const Session& session, std::string location) {
  return std::make_unique<PackageSource>(session, std::move(location));
}

}  // namespace sluice
