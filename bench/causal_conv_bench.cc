// The row kernels of a linear-attention layer against ONNX Runtime's own operators in the same process:
// VarlenCausalConvWithState over 10,240 channels, GatedRMSNorm over 48 heads of 128.
//
// The roof is memory: what a call must read and write once, at the machine's read-modify-write bandwidth.
// Usage: causal_conv_bench [seconds a case]
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/float16.h"
#include "bench/peer.h"
#include "bench/timing.h"
#include "kernels/cpu/causal_conv.h"
#include "kernels/cpu/gated_rms_norm.h"
#include "kernels/cpu/roofs.h"

namespace sluice::bench {
namespace {

// Values of a type, made from one seed, and their number as the peer wants it.
struct Data {
  Data(DType t, std::vector<std::int64_t> s, unsigned seed) : type(t), shape(std::move(s)) {
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) count *= extent;
    bytes.resize(static_cast<std::size_t>(count) * dtype_bytes(type));
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (std::int64_t i = 0; i < count; ++i) {
      const float x = uniform(random);
      if (type == DType::f32) reinterpret_cast<float*>(bytes.data())[i] = x;
      if (type == DType::f16) reinterpret_cast<f16*>(bytes.data())[i] = to_f16(x);
      if (type == DType::bf16) reinterpret_cast<bf16*>(bytes.data())[i] = to_bf16(x);
    }
  }
  void* data() { return bytes.data(); }
  PeerTensor tensor(const char* name) { return {name, type, shape, bytes.data()}; }
  double value(std::size_t i) const {
    if (type == DType::f16) return to_f32(reinterpret_cast<const f16*>(bytes.data())[i]);
    if (type == DType::bf16) return to_f32(reinterpret_cast<const bf16*>(bytes.data())[i]);
    return reinterpret_cast<const float*>(bytes.data())[i];
  }
  std::size_t count() const { return bytes.size() / dtype_bytes(type); }

  DType type;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;
};

void check(const Data& ours, const Data& theirs, const std::string& what) {
  const double allowed = ours.type == DType::f32 ? 2e-6 : ours.type == DType::f16 ? 4e-3 : 4e-2;
  for (std::size_t i = 0; i < ours.count(); ++i) {
    if (!(std::abs(ours.value(i) - theirs.value(i)) <= allowed)) {
      fail("{}: element {} is {} where the runtime has {}: not timing this", what, i, ours.value(i), theirs.value(i));
    }
  }
}

// One operator's case: what the peer runs, what we run at a level, and how many bytes must move.
struct Case {
  std::string name;
  std::function<void()> theirs;
  std::function<void(Level)> ours;
  double bytes;
};

void run_case(const Case& c, ThreadPool& pool, double budget) {
  std::vector<Timed> bodies;
  if (c.theirs) bodies.push_back({"runtime", c.theirs});
  for (const Level level : vector_levels()) {
    bodies.push_back({std::string(level_name(level)), [&c, level] { c.ours(level); }});
  }
  double roof = 0;
  for (int turn = 0; turn < 3; ++turn) {
    roof = std::max(roof, measure_roofs(best_level(), pool, static_cast<std::size_t>(c.bytes / 2)).rmw_gbs);
    time_in_turns(bodies, budget / 3);
  }
  const double peer = c.theirs ? bodies[0].seconds : 0;
  for (const Timed& body : bodies) {
    fmt::print("{:52} {:8} {:10.1f} us {:6.1f} of {:5.1f} GB/s", c.name, body.name, body.seconds * 1e6,
               c.bytes / body.seconds / 1e9, roof);
    if (peer > 0 && body.name != "runtime") fmt::print("   {:5.1f} times the runtime's speed", peer / body.seconds);
    fmt::print("\n");
  }
}

void conv_case(std::int64_t tokens, DType type, int threads, double budget) {
  constexpr std::int64_t kChannels = 10240, kKernel = 4, kState = 3;
  Data input(type, {tokens, kChannels}, 1), weight(type, {kChannels, 1, kKernel}, 2), bias(type, {kChannels}, 3);
  Data state(type, {1, kChannels, kState}, 4), kept = state, output = input;
  Data peer_state = state, peer_output = input;
  std::vector<std::int32_t> offsets{0, static_cast<std::int32_t>(tokens)};
  ThreadPool pool(threads);
  CausalConvArgs args;
  args.shape = {tokens, 1, kChannels, kKernel, 1, 0};
  args.type = type;
  args.cu_seqlens = offsets.data();
  args.input = input.data();
  args.weight = weight.data();
  args.bias = bias.data();
  args.initial_state = state.data();
  args.activation = ConvActivation::silu;
  args.output = output.data();
  args.final_state = kept.data();
  std::vector<std::byte> scratch(causal_conv_scratch_bytes(args.shape, type));
  std::unique_ptr<Peer> peer;
  if (type == DType::f32) {
    PeerNode node{"com.microsoft", "VarlenCausalConvWithState", {}, {}, {{"activation", "silu"}}};
    node.inputs = {input.tensor("x"),
                   weight.tensor("w"),
                   {"cu", DType::i32, {2}, offsets.data()},
                   bias.tensor("b"),
                   state.tensor("s")};
    node.outputs = {peer_output.tensor("y"), peer_state.tensor("f")};
    peer = std::make_unique<Peer>(node, threads);
  }
  const auto run = [&](Level level) { causal_conv(level, args, scratch, pool); };
  if (peer) {
    peer->run();
    for (const Level level : supported_levels()) {
      run(level);
      check(output, peer_output, "VarlenCausalConvWithState");
      check(kept, peer_state, "VarlenCausalConvWithState state");
    }
  }
  const double elements = static_cast<double>(kChannels * (2 * tokens + kKernel + 1 + 2 * kState));
  run_case({fmt::format("conv 10240 channels, T={}, {}, {} thread(s)", tokens, dtype_name(type), threads),
            peer ? std::function<void()>([&] { peer->run(); }) : nullptr, run,
            elements * static_cast<double>(dtype_bytes(type))},
           pool, budget);
}

void norm_case(std::int64_t tokens, DType type, int threads, double budget) {
  constexpr std::int64_t kHeads = 48, kWidth = 128;
  Data input(type, {tokens, kHeads * kWidth}, 1), scale(type, {kWidth}, 2), gate(type, {tokens, kHeads * kWidth}, 3);
  Data output = input, peer_output = input;
  ThreadPool pool(threads);
  GatedRmsNormArgs args;
  args.groups = tokens * kHeads;
  args.width = kWidth;
  args.type = type;
  args.input = input.data();
  args.scale = scale.data();
  args.gate = gate.data();
  args.output = output.data();
  args.epsilon = 1e-6f;
  std::unique_ptr<Peer> peer;
  if (type != DType::bf16) {
    PeerNode node{"com.microsoft", "GatedRMSNorm", {}, {}, {{"epsilon", 1e-6f}}};
    node.inputs = {input.tensor("x"), scale.tensor("s"), gate.tensor("g")};
    node.outputs = {peer_output.tensor("y")};
    peer = std::make_unique<Peer>(node, threads);
  }
  const auto run = [&](Level level) { gated_rms_norm(level, args, pool); };
  if (peer) {
    peer->run();
    for (const Level level : supported_levels()) {
      run(level);
      check(output, peer_output, "GatedRMSNorm");
    }
  }
  run_case({fmt::format("gated norm 48 x 128, T={}, {}, {} thread(s)", tokens, dtype_name(type), threads),
            peer ? std::function<void()>([&] { peer->run(); }) : nullptr, run,
            3.0 * static_cast<double>(tokens * kHeads * kWidth) * static_cast<double>(dtype_bytes(type))},
           pool, budget);
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) try {
  const double budget = argc > 1 ? std::strtod(argv[1], nullptr) : 1;
  for (const int threads : {1, 2}) {
    for (const std::int64_t tokens : {1, 512}) {
      for (const sluice::DType type : {sluice::DType::f32, sluice::DType::f16, sluice::DType::bf16}) {
        sluice::bench::conv_case(tokens, type, threads, budget);
        sluice::bench::norm_case(tokens, type, threads, budget);
      }
    }
  }
} catch (const sluice::Error& e) {
  fmt::print(stderr, "{}\n", e.what());
  return 1;
}
