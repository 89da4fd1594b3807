// GatedDeltaNet at the geometry of a 27B hybrid (16 key heads, 48 value heads of 128) against ONNX Runtime's own
// GatedDeltaNet and LinearAttention: prefill, and decode over the states of 48 layers bound in place.
// Usage: gated_delta_net_bench [seconds a case, default 4 [part of the cases' names]]
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/float16.h"
#include "bench/best_roofs.h"
#include "bench/peer.h"
#include "bench/timing.h"
#include "kernels/cpu/gated_delta_net.h"

namespace sluice::bench {
namespace {

constexpr std::int64_t kKeyHeads = 16;
constexpr std::int64_t kValueHeads = 48;
constexpr std::int64_t kDim = 128;
constexpr std::int64_t kStates = 48;  // of one layer and request, together beyond the caches
constexpr std::int64_t kStateFloats = kValueHeads * kDim * kDim;
constexpr double kFlopsPerToken = 5.5e6;  // of the chunked form at this geometry

// Rows of as many tokens each.
struct Case {
  std::string name;
  std::int64_t rows = 1;
  std::int64_t length = 1;

  std::int64_t tokens() const { return rows * length; }
  bool decodes() const { return length < kGatedDeltaNetChunk; }
  std::int64_t layers() const { return decodes() ? kStates / rows : 1; }
};

// One layer's inputs in the evaluation contract (gates applied, q and k normalised outside), which both peers take.
struct Inputs {
  Case c;
  std::vector<float> query, key, value, decay, beta;  // [tokens, heads, dim] f32, [tokens, kValueHeads] f32
  std::vector<std::int32_t> offsets;

  explicit Inputs(const Case& given) : c(given) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> uniform;
    const auto fill = [&](std::vector<float>& out, std::int64_t count, auto&& draw) {
      out.resize(static_cast<std::size_t>(count));
      for (float& x : out) x = draw();
    };
    const std::int64_t t = c.tokens();
    fill(query, t * kKeyHeads * kDim, [&] { return normal(random); });
    fill(key, t * kKeyHeads * kDim, [&] { return normal(random); });
    fill(value, t * kValueHeads * kDim, [&] { return normal(random); });
    fill(decay, t * kValueHeads, [&] { return -0.3f * uniform(random); });
    fill(beta, t * kValueHeads, [&] { return uniform(random); });
    for (std::int64_t row = 0; row <= c.rows; ++row) offsets.push_back(static_cast<std::int32_t>(row * c.length));
    for (auto* vectors : {&query, &key}) {
      for (std::size_t at = 0; at < vectors->size(); at += kDim) {
        double sum = 0;
        for (std::size_t i = 0; i < kDim; ++i) sum += double{(*vectors)[at + i]} * (*vectors)[at + i];
        for (std::size_t i = 0; i < kDim; ++i) (*vectors)[at + i] /= static_cast<float>(std::sqrt(sum));
      }
    }
  }
};

// The states of all layers, which everybody who is timed works on in turn, so that nobody's lie better in memory. At a
// cache line, as the runtime places its tensors.
class States {
 public:
  explicit States(const Case& c)
      : floats_(c.rows * kStateFloats), layers_(c.layers()), memory_(static_cast<std::size_t>(floats_ * layers_) + 16) {
    first_ = memory_.data();
    while (reinterpret_cast<std::uintptr_t>(first_) % 64 != 0) ++first_;
  }

  float* next() {
    next_ = (next_ + 1) % layers_;
    return first_ + next_ * floats_;
  }
  void clear() { std::fill(memory_.begin(), memory_.end(), 0.0f); }

 private:
  std::int64_t floats_;
  std::int64_t layers_;
  std::int64_t next_ = 0;
  std::vector<float> memory_;
  float* first_;
};

// Our kernel over the states in place, one layer a call.
class Ours {
 public:
  Ours(Level level, const Inputs& inputs, DType dtype, States& states, ThreadPool& pool)
      : level_(level), pool_(pool), states_(states) {
    args_.shape = {inputs.c.tokens(), inputs.c.rows, kKeyHeads, kKeyHeads, kValueHeads, kDim, kDim, 0, false};
    args_.scale = 1.0f;
    args_.dtype = dtype;
    args_.query = {narrowed(inputs.query, dtype), kKeyHeads * kDim, kDim};
    args_.key = {narrowed(inputs.key, dtype), kKeyHeads * kDim, kDim};
    args_.value = {narrowed(inputs.value, dtype), kValueHeads * kDim, kDim};
    args_.decay = {inputs.decay.data(), kValueHeads, 1};
    args_.beta = {inputs.beta.data(), kValueHeads, 1};
    args_.cu_seqlens = inputs.offsets.data();
    output.resize(inputs.value.size());
    args_.output = output.data();
    scratch_.resize(gated_delta_net_scratch_bytes(level, args_.shape));
  }

  void run() {
    args_.initial_state = args_.final_state = states_.next();
    gated_delta_net(level_, args_, scratch_, pool_);
  }

  std::vector<float> output;  // read as f32 only with DType::f32

 private:
  const void* narrowed(const std::vector<float>& values, DType dtype) {
    if (dtype == DType::f32) return values.data();
    std::vector<std::uint16_t>& bits = narrowed_.emplace_back();
    for (const float x : values) bits.push_back(dtype == DType::f16 ? to_f16(x).bits : to_bf16(x).bits);
    return bits.data();
  }

  Level level_;
  ThreadPool& pool_;
  States& states_;
  std::vector<std::vector<std::uint16_t>> narrowed_;
  std::vector<std::byte> scratch_;
  GatedDeltaNetArgs args_;
};

// One of the runtime's operators over the same data, its states bound in place too.
class Theirs {
 public:
  Theirs(const std::string& op, const Inputs& in, States& states, int threads)
      : output(in.value.size()), states_(states) {
    using Shape = std::vector<std::int64_t>;
    const bool linear = op == "LinearAttention";
    // Dense [rows, length, heads * dim] for LinearAttention, packed [tokens, heads, dim] for GatedDeltaNet.
    const auto tensor = [&](const char* name, const std::vector<float>& data, std::int64_t heads, std::int64_t dim) {
      Shape shape = linear ? Shape{in.c.rows, in.c.length, heads * dim} : Shape{in.c.tokens(), heads, dim};
      if (!linear && dim == 1) shape.pop_back();
      return PeerTensor{name, DType::f32, std::move(shape), const_cast<float*>(data.data())};
    };
    const PeerTensor state{"past", DType::f32, {in.c.rows, kValueHeads, kDim, kDim}, states.next()};
    const PeerTensor query = tensor("q", in.query, kKeyHeads, kDim), key = tensor("k", in.key, kKeyHeads, kDim);
    const PeerTensor value = tensor("v", in.value, kValueHeads, kDim);
    const PeerTensor decay = tensor("g", in.decay, kValueHeads, 1), beta = tensor("b", in.beta, kValueHeads, 1);
    const PeerTensor offsets{"cu", DType::i32, {in.c.rows + 1}, const_cast<std::int32_t*>(in.offsets.data())};
    PeerTensor present = state, out = value;
    present.name = "present", out.name = "o", out.data = output.data();
    PeerNode node{"com.microsoft", op, {}, {out, present}, {{"update_rule", "gated_delta"}, {"scale", 1.0f}}};
    if (linear) {
      node.inputs = {query, key, value, state, decay, beta};
      node.attributes.push_back({"q_num_heads", kKeyHeads});
      node.attributes.push_back({"kv_num_heads", kValueHeads});
    } else {
      node.inputs = {query, key, value, offsets, decay, beta, state};
    }
    peer_ = std::make_unique<Peer>(node, threads);
  }

  void run() {
    float* state = states_.next();
    peer_->rebind("past", state);
    peer_->rebind("present", state);
    peer_->run();
  }

  std::vector<float> output;

 private:
  States& states_;
  std::unique_ptr<Peer> peer_;
};

void check_same(const std::vector<float>& ours, const std::vector<float>& theirs, const std::string& what) {
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    worst = std::max(worst, std::abs(double{ours[i]} - theirs[i]));
    largest = std::max(largest, std::abs(double{theirs[i]}));
  }
  if (!(worst <= 2e-5 * largest)) {
    fail("{}: {:.1e} apart where the largest output is {:.1e}, not timing this", what, worst, largest);
  }
}

struct Entry {
  Level level;
  std::unique_ptr<Ours> ours;
};

void print_row(const Case& c, const Timed& timed, const Roofs& roofs, double linear, double own) {
  const double tokens = static_cast<double>(c.tokens());
  double reached = kFlopsPerToken * tokens / timed.seconds / 1e9, roof = roofs.fma_gflops;
  if (c.decodes()) {
    reached = 2.0 * static_cast<double>(c.rows * kStateFloats * 4) / timed.seconds / 1e9;
    roof = roofs.rmw_gbs;
  }
  fmt::print(
      "  {:12} {:9.2f} us/token {:7.1f} of {:5.1f} {} = {:3.0f} %   {:.3f} of LinearAttention {:.3f} of "
      "GatedDeltaNet\n",
      timed.name, 1e6 * timed.seconds / tokens, reached, roof, c.decodes() ? "GB/s read-modify-write" : "GFLOP/s",
      100 * reached / roof, timed.seconds / linear, timed.seconds / own);
}

void run_case(const Case& c, int threads, double budget) {
  const Inputs inputs(c);
  ThreadPool pool(threads);
  States states(c);
  Theirs linear("LinearAttention", inputs, states, threads), own("GatedDeltaNet", inputs, states, threads);
  linear.run();
  std::vector<Entry> entries;
  std::vector<Timed> slow{{"GatedDeltaNet", [&] { own.run(); }}};  // would eat the others' time
  std::vector<Timed> bodies{{"LinearAttention", [&] { linear.run(); }}};
  for (const Level level : vector_levels()) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      entries.push_back({level, std::make_unique<Ours>(level, inputs, dtype, states, pool)});
      Ours* mine = entries.back().ours.get();
      states.clear();
      mine->run();
      const std::string name = fmt::format("{} {}", level_name(level), dtype_name(dtype));
      if (dtype == DType::f32) check_same(mine->output, linear.output, name);
      bodies.push_back({name, [mine] { mine->run(); }});
    }
  }
  BestRoofs roofs;
  for (int turn = 0; turn < 3; ++turn) {
    roofs.measure(pool, kStates * kStateFloats * sizeof(float));
    time_in_turns(bodies, budget / 3, 2);
    time_in_turns(slow, 0, 1);
  }
  const double tokens = static_cast<double>(c.tokens());
  fmt::print("{}, {} thread{}: LinearAttention {:.2f} us/token, GatedDeltaNet {:.2f}\n", c.name, threads,
             threads > 1 ? "s" : "", 1e6 * bodies[0].seconds / tokens, 1e6 * slow[0].seconds / tokens);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    print_row(c, bodies[i + 1], roofs.of(entries[i].level), bodies[0].seconds, slow[0].seconds);
  }
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) try {
  using sluice::bench::Case;
  const double budget = argc > 1 ? std::strtod(argv[1], nullptr) : 4;
  const std::string part = argc > 2 ? argv[2] : "";
  const Case cases[] = {{"decode T=1", 1, 1},       {"decode 8 rows of T=1", 8, 1}, {"draft T=4", 1, 4},
                        {"draft T=8", 1, 8},        {"prefill T=64", 1, 64},        {"prefill T=512", 1, 512},
                        {"prefill T=2048", 1, 2048}};
  for (const int threads : {1, 2}) {
    for (const Case& c : cases) {
      if (c.name.find(part) != std::string::npos) sluice::bench::run_case(c, threads, budget);
    }
  }
} catch (const sluice::Error& e) {
  fmt::print(stderr, "{}\n", e.what());
  return 1;
}
