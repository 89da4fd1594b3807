// The oracle: the forward pass of a checkpoint, straight from its weights, in float or double. Clarity over speed.
//
// A pass over one sequence: embedding -> layers (norm, mixer, add, norm, feed-forward, add) -> final norm -> head.
// Every token's result is bit-equal wherever the sequence is cut into calls, and whatever the number of threads: sums
// run in an order that depends on the token alone.
#pragma once

#include <cstdint>
#include <span>

#include "reference/layer.h"
#include "reference/state.h"

namespace sluice::reference {

struct Options {
  // Added to the sum of squares when q and k of the delta rule are normalised: 1e-6 is the checkpoint's formula, 1e-12
  // what the operator GatedDeltaNet does.
  double qk_norm_epsilon = 1e-6;
  // Leading layers to run, before final norm and head; negative: all.
  std::int64_t num_layers = -1;
};

// Weights stay in the mapped checkpoint and are widened as they are used: memory is a few activations of at most
// 256 tokens, plus the state. `config` and `weights` must outlive the model.
template <typename T>
class Model {
 public:
  Model(const HybridConfig& config, const WeightSource& weights, Executor& executor, Options options = {});

  std::int64_t layers() const { return layers_; }
  const HybridConfig& config() const { return config_; }

  // The state before the first token.
  State<T> start() const;
  // Runs `ids` behind what `state` has seen and advances it. Returns the hidden states after the final norm
  // [ids, hidden]. Throws Error, with the state as it was, for an id outside the vocabulary. With more than 256 ids the
  // probe is called once a piece of 256.
  Rows<T> forward(std::span<const std::int64_t> ids, State<T>& state, const Probe<T>& probe = {}) const;
  // Logits of hidden states from forward: [rows, hidden] -> [rows, vocab]. Choose the rows: vocabularies are large.
  Rows<T> head(const Rows<T>& hidden) const;

 private:
  Rows<T> embed(std::span<const std::int64_t> ids) const;
  Rows<T> normalized(const Rows<T>& x, const CanonicalWeight& norm) const;
  void run_layer(std::int64_t layer, Rows<T>& x, State<T>& state, const Probe<T>& probe) const;
  Rows<T> forward_piece(std::span<const std::int64_t> ids, State<T>& state, const Probe<T>& probe) const;

  const HybridConfig& config_;
  const WeightSource& weights_;
  Executor& executor_;
  Options options_;
  std::int64_t layers_;
};

}  // namespace sluice::reference
