// For tests: a source whose logits are a function of the tokens seen.
#pragma once

#include <functional>
#include <map>

#include "eval/logits_source.h"

namespace sluice {

class FakeSource final : public LogitsSource {
 public:
  // Logits [vocab] after the tokens of `seen`.
  using Function = std::function<std::vector<float>(std::span<const std::int64_t> seen)>;

  FakeSource(std::int64_t vocab, Function function) : vocab_(vocab), function_(std::move(function)) {}

  std::string describe() const override { return "fake"; }
  std::int64_t vocab() const override { return vocab_; }
  void start(const TokenSequence& sequence) override {
    sequence_ = &sequence;
    fed_ = 0;
    pieces.clear();
  }
  void feed(std::int64_t count, const PositionSink& sink) override {
    pieces.push_back(count);
    for (const std::int64_t position : sequence_->positions) {
      if (position < fed_ || position >= fed_ + count) continue;
      sink(position, function_(std::span(sequence_->ids).first(static_cast<std::size_t>(position + 1))));
    }
    fed_ += count;
  }
  std::vector<LayerStateValues> states() override { return state_values; }
  std::vector<std::int64_t> greedy(std::span<const std::int64_t> prompt, std::int64_t count) override {
    std::vector<std::int64_t> seen(prompt.begin(), prompt.end());
    for (std::int64_t i = 0; i < count; ++i) seen.push_back(argmax(function_(seen)));
    return {seen.begin() + static_cast<std::ptrdiff_t>(prompt.size()), seen.end()};
  }

  std::vector<std::int64_t> pieces;  // fed since the last start
  std::vector<LayerStateValues> state_values;

 private:
  std::int64_t vocab_;
  Function function_;
  const TokenSequence* sequence_ = nullptr;
  std::int64_t fed_ = 0;
};

}  // namespace sluice
