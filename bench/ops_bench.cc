// Whole operators inside ONNX Runtime, through the library as a program loads it, against the runtime's own operators
// in the same process: what a graph gains, with the node's own overhead in it. The kernels alone have benches of their
// own beside this one.
#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/float16.h"
#include "bench/peer.h"

namespace sluice::bench {
namespace {

using Shape = std::vector<std::int64_t>;

// Tensors by name; both operators of a pair read and write the same ones.
class Buffers {
 public:
  PeerTensor floats(const std::string& name, const Shape& shape, float low, float high) {
    std::vector<float>& values = float_[name];
    values.resize(static_cast<std::size_t>(count(shape)));
    std::uniform_real_distribution<float> uniform(low, high);
    for (float& v : values) v = uniform(random_);
    return {name, DType::f32, shape, values.data()};
  }

  // Weights that bf16 holds, in f32.
  PeerTensor weights(const std::string& name, const Shape& shape) {
    const PeerTensor tensor = floats(name, shape, -0.25f, 0.25f);
    for (float& v : float_[name]) v = to_f32(to_bf16(v));
    return tensor;
  }

  // A tensor of floats in bf16.
  PeerTensor narrowed(const PeerTensor& from, const std::string& name) {
    const std::vector<float>& values = float_.at(from.name);
    std::vector<bf16>& halves = half_[name];
    halves.resize(values.size());
    std::transform(values.begin(), values.end(), halves.begin(), [](float v) { return to_bf16(v); });
    return {name, DType::bf16, from.shape, halves.data()};
  }

  PeerTensor ints(const std::string& name, std::vector<std::int32_t> values) {
    const Shape shape{static_cast<std::int64_t>(values.size())};
    int_[name] = std::move(values);
    return {name, DType::i32, shape, int_[name].data()};
  }

  const std::vector<float>& values(const std::string& name) const { return float_.at(name); }

 private:
  static std::int64_t count(const Shape& shape) {
    std::int64_t n = 1;
    for (const std::int64_t extent : shape) n *= extent;
    return n;
  }

  std::mt19937 random_{5};
  std::map<std::string, std::vector<float>> float_;
  std::map<std::string, std::vector<bf16>> half_;
  std::map<std::string, std::vector<std::int32_t>> int_;
};

// The same work for both sides; "o" of ours and "p" of theirs hold the result that is compared.
struct Pair {
  std::string name;
  Buffers buffers;
  PeerNode ours;
  PeerNode theirs;
};

using PairPointer = std::shared_ptr<Pair>;

// A 27B layer: 16 key heads, 48 value heads of 128, raw gates, the state in place.
PairPointer gated_delta_net(std::int64_t tokens) {
  constexpr std::int64_t kKeys = 16, kValues = 48, kDim = 128;
  auto pair = std::make_shared<Pair>();
  pair->name = fmt::format("GatedDeltaNet/T{}", tokens);
  Buffers& b = pair->buffers;
  const PeerTensor state = b.floats("state", {1, kValues, kDim, kDim}, -0.1f, 0.1f);
  PeerTensor present = state;
  present.name = "present";
  PeerNode node{"com.microsoft",
                "GatedDeltaNet",
                {b.floats("q", {tokens, kKeys, kDim}, -1, 1), b.floats("k", {tokens, kKeys, kDim}, -1, 1),
                 b.floats("v", {tokens, kValues, kDim}, -1, 1), b.ints("cu", {0, static_cast<std::int32_t>(tokens)}),
                 b.floats("a", {tokens, kValues}, -1, 1), b.floats("b", {tokens, kValues}, -1, 1), state,
                 b.floats("a_log", {kValues}, 0, 1), b.floats("dt_bias", {kValues}, -1, 1)},
                {},
                {{"gate_activation", "qwen"}, {"beta_activation", "sigmoid"}, {"qk_l2_norm", std::int64_t{1}}}};
  pair->ours = pair->theirs = node;
  // Two runs leave two states; one token's output hardly shows the difference, so ours is run from a copy.
  PeerTensor own = b.floats("own_state", {1, kValues, kDim, kDim}, 0, 0);
  std::copy_n(static_cast<const float*>(state.data), kValues * kDim * kDim, static_cast<float*>(own.data));
  pair->ours.inputs[6] = own;
  PeerTensor own_present = own;
  own_present.name = "own_present";
  pair->ours.outputs = {b.floats("o", {tokens, kValues, kDim}, 0, 0), own_present};
  pair->theirs.outputs = {b.floats("p", {tokens, kValues, kDim}, 0, 0), present};
  return pair;
}

PairPointer convolution(std::int64_t tokens) {
  constexpr std::int64_t kChannels = 10240, kTaps = 4;
  auto pair = std::make_shared<Pair>();
  pair->name = fmt::format("VarlenCausalConvWithState/T{}", tokens);
  Buffers& b = pair->buffers;
  pair->ours = {"com.microsoft",
                "VarlenCausalConvWithState",
                {b.floats("x", {tokens, kChannels}, -1, 1),
                 b.floats("w", {kChannels, 1, kTaps}, -1, 1),
                 b.ints("cu", {0, static_cast<std::int32_t>(tokens)}),
                 {},
                 b.floats("s", {1, kChannels, kTaps - 1}, -1, 1)},
                {b.floats("o", {tokens, kChannels}, 0, 0), b.floats("n", {1, kChannels, kTaps - 1}, 0, 0)},
                {{"activation", "silu"}}};
  pair->theirs = pair->ours;
  pair->theirs.outputs[0] = b.floats("p", {tokens, kChannels}, 0, 0);
  return pair;
}

PairPointer gated_norm(std::int64_t tokens) {
  constexpr std::int64_t kHeads = 48, kDim = 128;
  auto pair = std::make_shared<Pair>();
  pair->name = fmt::format("GatedRMSNorm/T{}", tokens);
  Buffers& b = pair->buffers;
  pair->ours = {"com.microsoft",
                "GatedRMSNorm",
                {b.floats("x", {tokens, kHeads * kDim}, -1, 1), b.floats("w", {kDim}, 0.5f, 1.5f),
                 b.floats("g", {tokens, kHeads * kDim}, -4, 4)},
                {b.floats("o", {tokens, kHeads * kDim}, 0, 0)},
                {{"epsilon", 1e-6f}}};
  pair->theirs = pair->ours;
  pair->theirs.outputs[0] = b.floats("p", {tokens, kHeads * kDim}, 0, 0);
  return pair;
}

// PagedAttention against GroupQueryAttention over as many positions, 16 query and 2 key heads of 256, both caches in place.
// Pages and rows are in order, so that one cache's content can be laid out as the other's.
PairPointer attention(std::int64_t past, std::int64_t tokens) {
  constexpr std::int64_t kHeads = 16, kKeys = 2, kDim = 256, kBlock = 64;
  const std::int64_t blocks = (past + tokens + kBlock - 1) / kBlock;
  const std::int64_t room = blocks * kBlock;
  auto pair = std::make_shared<Pair>();
  pair->name = fmt::format("PagedAttention/past{}/T{}", past, tokens);
  Buffers& b = pair->buffers;
  const PeerTensor query = b.floats("q", {tokens, kHeads * kDim}, -1, 1);
  const PeerTensor key = b.floats("k", {tokens, kKeys * kDim}, -1, 1);
  const PeerTensor value = b.floats("v", {tokens, kKeys * kDim}, -1, 1);
  std::vector<std::int32_t> table;
  for (std::int64_t c = 0; c < blocks; ++c) table.push_back(static_cast<std::int32_t>(c));
  PeerTensor pages = b.ints("table", table);
  pages.shape = {1, blocks};
  std::vector<PeerTensor> caches, dense;
  for (const char* name : {"kc", "vc"}) {
    caches.push_back(b.floats(name, {blocks, kBlock, kKeys, kDim}, -1, 1));
    dense.push_back(b.floats(std::string(name) + "_dense", {1, kKeys, room, kDim}, 0, 0));
    const float* from = static_cast<const float*>(caches.back().data);
    float* to = static_cast<float*>(dense.back().data);
    for (std::int64_t p = 0; p < room; ++p) {
      for (std::int64_t h = 0; h < kKeys; ++h)
        std::copy_n(from + (p * kKeys + h) * kDim, kDim, to + (h * room + p) * kDim);
    }
  }
  const auto renamed = [](PeerTensor t, const std::string& name) {
    t.name = name;
    return t;
  };
  const auto batched = [](PeerTensor t) {
    t.shape.insert(t.shape.begin(), 1);
    return t;
  };
  const auto past32 = static_cast<std::int32_t>(past);
  const auto total = static_cast<std::int32_t>(past + tokens);
  pair->ours = {"com.microsoft",
                "PagedAttention",
                {query, key, value, caches[0], caches[1], b.ints("cu", {0, static_cast<std::int32_t>(tokens)}),
                 b.ints("past", {past32}), pages},
                {b.floats("o", {tokens, kHeads * kDim}, 0, 0), renamed(caches[0], "kn"), renamed(caches[1], "vn")},
                {{"num_heads", kHeads}, {"kv_num_heads", kKeys}}};
  PeerTensor answer = batched(b.floats("p", {tokens, kHeads * kDim}, 0, 0));
  pair->theirs = {"com.microsoft",
                  "GroupQueryAttention",
                  {batched(query), batched(key), batched(value), dense[0], dense[1], b.ints("last", {total - 1}),
                   b.ints("total", {total})},
                  {answer, renamed(dense[0], "kn"), renamed(dense[1], "vn")},
                  {{"num_heads", kHeads}, {"kv_num_heads", kKeys}}};
  return pair;
}

// bf16 weights in the checkpoint's layout against MatMul with the same ones in f32, transposed; constants on both sides.
PairPointer linear(std::int64_t tokens) {
  constexpr std::int64_t kIn = 1024, kOut = 3584;
  auto pair = std::make_shared<Pair>();
  pair->name = fmt::format("Linear/M{}", tokens);
  Buffers& b = pair->buffers;
  const PeerTensor x = b.floats("x", {tokens, kIn}, -1, 1);
  PeerTensor weight = b.weights("w", {kOut, kIn});
  PeerTensor ours = b.narrowed(weight, "w16");
  PeerTensor theirs = b.floats("wt", {kIn, kOut}, 0, 0);
  const float* from = static_cast<const float*>(weight.data);
  for (std::int64_t n = 0; n < kOut; ++n) {
    for (std::int64_t k = 0; k < kIn; ++k) static_cast<float*>(theirs.data)[k * kOut + n] = from[n * kIn + k];
  }
  ours.constant = theirs.constant = true;
  pair->ours = {"sluice", "Linear", {x, ours}, {b.floats("o", {tokens, kOut}, 0, 0)}, {}};
  pair->theirs = {"", "MatMul", {x, theirs}, {b.floats("p", {tokens, kOut}, 0, 0)}, {}};
  return pair;
}

// bf16 experts against the runtime's MoE, whose weights are f32 and whose gate and up rows alternate.
PairPointer mixture(std::int64_t tokens) {
  constexpr std::int64_t kHidden = 1024, kInner = 256, kExperts = 32, kChosen = 4;
  auto pair = std::make_shared<Pair>();
  pair->name = fmt::format("MoE/T{}", tokens);
  Buffers& b = pair->buffers;
  const PeerTensor x = b.floats("x", {tokens, kHidden}, -1, 1);
  const PeerTensor router = b.floats("router", {tokens, kExperts}, -2, 2);
  const PeerTensor gate_up = b.weights("gu", {kExperts, 2 * kInner, kHidden});
  const PeerTensor down = b.weights("d", {kExperts, kHidden, kInner});
  const PeerTensor alternating = b.floats("gu_rows", gate_up.shape, 0, 0);
  for (std::int64_t row = 0; row < kExperts * 2 * kInner; ++row) {
    const std::int64_t expert = row / (2 * kInner), up = row / kInner % 2;
    std::copy_n(static_cast<const float*>(gate_up.data) + row * kHidden, kHidden,
                static_cast<float*>(alternating.data) + (expert * 2 * kInner + row % kInner * 2 + up) * kHidden);
  }
  pair->ours = {"sluice",
                "MoE",
                {x, router, b.narrowed(gate_up, "gu16"), b.narrowed(down, "d16")},
                {b.floats("o", {tokens, kHidden}, 0, 0)},
                {{"k", kChosen}}};
  pair->theirs = {"com.microsoft",
                  "MoE",
                  {x, router, alternating, {}, down},
                  {b.floats("p", {tokens, kHidden}, 0, 0)},
                  {{"k", kChosen},
                   {"activation_type", "swiglu"},
                   {"swiglu_fusion", std::int64_t{1}},
                   {"normalize_routing_weights", std::int64_t{1}}}};
  return pair;
}

// Both sides once, from equal states: their results must agree before they are timed.
void check(const Pair& pair, Peer& ours, Peer& theirs) {
  ours.run();
  theirs.run();
  const std::vector<float>& left = pair.buffers.values("o");
  const std::vector<float>& right = pair.buffers.values("p");
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < left.size(); ++i) {
    worst = std::max(worst, std::abs(double{left[i]} - double{right[i]}));
    largest = std::max(largest, std::abs(double{right[i]}));
  }
  fmt::print("check {:36} largest difference {:.1e} of {:.1e}\n", pair.name, worst, largest);
  if (!(worst <= 1e-4 * largest)) fail("{}: results differ, not timing them", pair.name);
}

// Keeps the shortest time of every benchmark.
class Minima : public ::benchmark::ConsoleReporter {
 public:
  void ReportRuns(const std::vector<Run>& runs) override {
    ConsoleReporter::ReportRuns(runs);
    for (const Run& run : runs) {
      if (run.run_type != Run::RT_Iteration) continue;
      const double seconds = run.real_accumulated_time / static_cast<double>(run.iterations);
      auto [at, fresh] = seconds_.try_emplace(run.run_name.function_name, seconds);
      if (!fresh) at->second = std::min(at->second, seconds);
    }
  }
  double microseconds(const std::string& name) const {
    const auto at = seconds_.find(name);
    return at == seconds_.end() ? 0 : at->second * 1e6;
  }

 private:
  std::map<std::string, double> seconds_;
};

void enlist(const std::string& name, std::shared_ptr<Peer> peer, PairPointer pair) {
  ::benchmark::RegisterBenchmark(name.c_str(),
                                 [peer = std::move(peer), pair = std::move(pair)](::benchmark::State& state) {
                                   for (auto _ : state) peer->run();
                                 })
      ->UseRealTime()
      ->Unit(::benchmark::kMicrosecond);
}

std::vector<std::string> enlist_all() {
  std::vector<std::string> names;
  for (const int threads : {1, 2}) {
    for (const PairPointer& pair :
         {gated_delta_net(1), gated_delta_net(512), convolution(1), convolution(512), gated_norm(1), gated_norm(64),
          attention(4096, 1), attention(0, 512), linear(1), linear(512), mixture(1), mixture(512)}) {
      auto ours = std::make_shared<Peer>(pair->ours, threads, SLUICE_OPS_LIBRARY);
      auto theirs = std::make_shared<Peer>(pair->theirs, threads);
      check(*pair, *ours, *theirs);
      const std::string name = fmt::format("{}/threads{}", pair->name, threads);
      names.push_back(name);
      enlist(name + "/sluice", ours, pair);
      enlist(name + "/runtime", theirs, pair);
    }
  }
  return names;
}

void print_table(const std::vector<std::string>& names, const Minima& minima) {
  fmt::print("\n{:40} {:>12} {:>12} {:>8}\n", "whole operator, us a call", "sluice", "runtime", "ratio");
  for (const std::string& name : names) {
    const double ours = minima.microseconds(name + "/sluice");
    const double theirs = minima.microseconds(name + "/runtime");
    if (ours > 0 && theirs > 0) fmt::print("{:40} {:12.1f} {:12.1f} {:8.3f}\n", name, ours, theirs, ours / theirs);
  }
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) try {
  benchmark::Initialize(&argc, argv);
  const std::vector<std::string> names = sluice::bench::enlist_all();
  sluice::bench::Minima minima;
  benchmark::RunSpecifiedBenchmarks(&minima);
  sluice::bench::print_table(names, minima);
} catch (const sluice::Error& e) {
  fmt::print(stderr, "{}\n", e.what());
  return 1;
}
