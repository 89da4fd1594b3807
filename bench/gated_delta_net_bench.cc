// GatedDeltaNet at the geometry of a 27B hybrid (16 key heads, 48 value heads of 128) against ONNX Runtime's own
// GatedDeltaNet and LinearAttention: prefill, and decode over the states of 48 layers bound in place.
#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/float16.h"
#include "bench/peer.h"
#include "kernels/cpu/gated_delta_net.h"
#include "kernels/cpu/roofs.h"

namespace sluice::bench {
namespace {

constexpr std::int64_t kKeyHeads = 16;
constexpr std::int64_t kValueHeads = 48;
constexpr std::int64_t kDim = 128;
constexpr std::int64_t kLayers = 48;
constexpr std::int64_t kStateFloats = kValueHeads * kDim * kDim;
constexpr double kFlopsPerToken = 5.5e6;  // of the chunked form at this geometry

// One layer's inputs in the evaluation contract (gates applied, q and k normalised outside), which both peers take.
struct Inputs {
  std::int64_t tokens;
  std::vector<float> query, key, value, decay, beta;  // [tokens, heads, dim] f32, [tokens, kValueHeads] f32
  std::vector<std::int32_t> offsets;

  explicit Inputs(std::int64_t t) : tokens(t), offsets{0, static_cast<std::int32_t>(t)} {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> uniform;
    const auto fill = [&](std::vector<float>& out, std::int64_t count, auto&& draw) {
      out.resize(static_cast<std::size_t>(count));
      for (float& x : out) x = draw();
    };
    fill(query, t * kKeyHeads * kDim, [&] { return normal(random); });
    fill(key, t * kKeyHeads * kDim, [&] { return normal(random); });
    fill(value, t * kValueHeads * kDim, [&] { return normal(random); });
    fill(decay, t * kValueHeads, [&] { return -0.3f * uniform(random); });
    fill(beta, t * kValueHeads, [&] { return uniform(random); });
    for (auto* vectors : {&query, &key}) {
      for (std::size_t at = 0; at < vectors->size(); at += kDim) {
        double sum = 0;
        for (std::size_t i = 0; i < kDim; ++i) sum += double{(*vectors)[at + i]} * (*vectors)[at + i];
        for (std::size_t i = 0; i < kDim; ++i) (*vectors)[at + i] /= static_cast<float>(std::sqrt(sum));
      }
    }
  }
};

// Our kernel over `layers` states in place, one layer a call.
class Ours {
 public:
  Ours(Level level, const Inputs& inputs, DType dtype, std::int64_t layers, ThreadPool& pool)
      : level_(level), pool_(pool), states_(static_cast<std::size_t>(layers * kStateFloats)), layers_(layers) {
    args_.shape = {inputs.tokens, 1, kKeyHeads, kKeyHeads, kValueHeads, kDim, kDim, 0, false};
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
    args_.initial_state = args_.final_state = states_.data() + next_ * kStateFloats;
    next_ = (next_ + 1) % layers_;
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
  std::vector<std::vector<std::uint16_t>> narrowed_;
  std::vector<float> states_;
  std::int64_t layers_;
  std::int64_t next_ = 0;
  std::vector<std::byte> scratch_;
  GatedDeltaNetArgs args_;
};

// One of the runtime's operators over the same data, its states bound in place too.
class Theirs {
 public:
  Theirs(const std::string& op, const Inputs& in, std::int64_t layers, int threads)
      : output(in.value.size()), states_(static_cast<std::size_t>(layers * kStateFloats)) {
    const bool linear = op == "LinearAttention";
    const auto tensor = [](const char* name, const std::vector<float>& data, std::vector<std::int64_t> shape) {
      return PeerTensor{name, DType::f32, std::move(shape), const_cast<float*>(data.data())};
    };
    const std::int64_t t = in.tokens;
    using Shape = std::vector<std::int64_t>;
    const PeerTensor state{"past", DType::f32, {1, kValueHeads, kDim, kDim}, states_.data()};
    const PeerTensor query = tensor("q", in.query, linear ? Shape{1, t, kKeyHeads * kDim} : Shape{t, kKeyHeads, kDim});
    const PeerTensor key = tensor("k", in.key, linear ? Shape{1, t, kKeyHeads * kDim} : Shape{t, kKeyHeads, kDim});
    const PeerTensor value =
        tensor("v", in.value, linear ? Shape{1, t, kValueHeads * kDim} : Shape{t, kValueHeads, kDim});
    const PeerTensor decay = tensor("g", in.decay, linear ? Shape{1, t, kValueHeads} : Shape{t, kValueHeads});
    const PeerTensor beta = tensor("b", in.beta, linear ? Shape{1, t, kValueHeads} : Shape{t, kValueHeads});
    const PeerTensor offsets{"cu", DType::i32, {2}, const_cast<std::int32_t*>(in.offsets.data())};
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
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      node.inputs[linear ? 3 : 6].data = node.outputs[1].data = states_.data() + layer * kStateFloats;
      if (layer == 0) peer_ = std::make_unique<Peer>(node, threads);
    }
    layers_ = layers;
  }

  void run() {
    if (layers_ > 1) {
      float* state = states_.data() + next_ * kStateFloats;
      peer_->rebind("past", state);
      peer_->rebind("present", state);
      next_ = (next_ + 1) % layers_;
    }
    peer_->run();
  }

  std::vector<float> output;

 private:
  std::vector<float> states_;
  std::unique_ptr<Peer> peer_;
  std::int64_t layers_ = 1;
  std::int64_t next_ = 0;
};

// The shortest call of a benchmark: what the kernel does when the machine does nothing else. Processor time, of all threads
// together, still tells when other programs share the cores.
struct Shortest {
  double wall = 1e30;  // seconds
  double cpu = 1e30;   // seconds
};

double cpu_seconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Case {
  std::string name;
  std::int64_t tokens;
  int threads;
  Level level = Level::scalar;  // scalar = a peer's
  Roofs roofs;
};

void check_same(const std::vector<float>& ours, const std::vector<float>& theirs, const std::string& what) {
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    worst = std::max(worst, std::abs(double{ours[i]} - theirs[i]));
    largest = std::max(largest, std::abs(double{theirs[i]}));
  }
  fmt::print("check {}: largest difference {:.1e} of {:.1e}\n", what, worst, largest);
  if (!(worst <= 2e-5 * largest)) fail("{}: results differ, not timing them", what);
}

class Suite {
 public:
  void add(std::int64_t tokens, int threads) {
    const std::int64_t layers = tokens == 1 ? kLayers : 1;
    const auto inputs = std::make_shared<Inputs>(tokens);
    const auto pool = std::make_shared<ThreadPool>(threads);
    const std::string suffix = fmt::format("/T{}/threads{}", tokens, threads);
    for (const Level level : supported_levels()) {
      if (level == Level::scalar) continue;
      const Roofs roofs = roofs_of(level, *pool);
      for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
        auto ours = std::make_shared<Ours>(level, *inputs, dtype, layers, *pool);
        if (dtype == DType::f32) check(*ours, *inputs, tokens, threads, level);
        const std::string name = fmt::format("sluice/{}/{}{}", level_name(level), dtype_name(dtype), suffix);
        enlist({name, tokens, threads, level, roofs}, [ours, inputs, pool] { ours->run(); });
      }
    }
    for (const char* op : {"LinearAttention", "GatedDeltaNet"}) {
      auto theirs = std::make_shared<Theirs>(op, *inputs, layers, threads);
      enlist({fmt::format("{}{}", op, suffix), tokens, threads, Level::scalar, {}},
             [theirs, inputs] { theirs->run(); });
    }
  }

  void print_table() const {
    fmt::print("\n{:36} {:>9} {:>9}  {:>13}  {:>13}\n", "", "us/token", "us/token", "x LinearAttn.", "x GatedDelta");
    fmt::print("{:36} {:>9} {:>9}  {:>6} {:>6}  {:>6} {:>6}  roof\n", "shortest call", "wall", "cpu", "wall", "cpu",
               "wall", "cpu");
    for (const Case& c : cases_) print_row(c);
  }

 private:
  const Roofs& roofs_of(Level level, ThreadPool& pool) {
    const auto key = std::make_pair(level, pool.threads());
    auto at = roofs_.find(key);
    if (at == roofs_.end()) {
      at = roofs_.emplace(key, measure_roofs(level, pool, kLayers * kStateFloats * sizeof(float))).first;
      fmt::print("{}\n", describe(level, at->second));
    }
    return at->second;
  }

  static void check(Ours& ours, const Inputs& inputs, std::int64_t tokens, int threads, Level level) {
    Theirs theirs("LinearAttention", inputs, 1, threads);
    ours.run();
    theirs.run();
    check_same(ours.output, theirs.output, fmt::format("{} T={} against LinearAttention", level_name(level), tokens));
  }

  void enlist(Case c, std::function<void()> run) {
    Shortest& best = shortest_[c.name];
    ::benchmark::RegisterBenchmark(c.name.c_str(),
                                   [run, &best](::benchmark::State& state) {
                                     for (auto _ : state) {
                                       const double cpu = cpu_seconds();
                                       const auto start = std::chrono::steady_clock::now();
                                       run();
                                       const std::chrono::duration<double> took =
                                           std::chrono::steady_clock::now() - start;
                                       state.SetIterationTime(took.count());
                                       best.wall = std::min(best.wall, took.count());
                                       best.cpu = std::min(best.cpu, cpu_seconds() - cpu);
                                     }
                                   })
        ->UseManualTime()
        ->Unit(::benchmark::kMicrosecond);
    cases_.push_back(std::move(c));
  }

  void print_row(const Case& c) const {
    const Shortest& shortest = shortest_.at(c.name);
    if (shortest.wall > 1e29) return;  // filtered out
    const double tokens = static_cast<double>(c.tokens);
    const auto peer = [&](const char* op) {
      return shortest_.at(fmt::format("{}/T{}/threads{}", op, c.tokens, c.threads));
    };
    std::string roof;
    if (c.level != Level::scalar && c.tokens > 1) {
      const double gflops = kFlopsPerToken * tokens / shortest.wall / 1e9;
      roof = fmt::format("{:.0f} GFLOP/s = {:.0f} % of FMA peak", gflops, 100 * gflops / c.roofs.fma_gflops);
    } else if (c.level != Level::scalar) {
      const double gbs = 2.0 * kStateFloats * sizeof(float) / shortest.wall / 1e9;
      roof = fmt::format("{:.1f} GB/s = {:.0f} % of read-modify-write", gbs, 100 * gbs / c.roofs.rmw_gbs);
    }
    const Shortest linear = peer("LinearAttention"), own = peer("GatedDeltaNet");
    fmt::print("{:36} {:9.2f} {:9.2f}  {:6.3f} {:6.3f}  {:6.3f} {:6.3f}  {}\n", c.name, 1e6 * shortest.wall / tokens,
               1e6 * shortest.cpu / tokens, shortest.wall / linear.wall, shortest.cpu / linear.cpu,
               shortest.wall / own.wall, shortest.cpu / own.cpu, roof);
  }

  std::map<std::string, Shortest> shortest_;
  std::vector<Case> cases_;
  std::map<std::pair<Level, int>, Roofs> roofs_;
};

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) try {
  benchmark::Initialize(&argc, argv);
  sluice::bench::Suite suite;
  for (const int threads : {1, 2}) {
    for (const std::int64_t tokens : {1, 64, 512, 2048}) suite.add(tokens, threads);
  }
  benchmark::RunSpecifiedBenchmarks();
  suite.print_table();
} catch (const sluice::Error& e) {
  fmt::print(stderr, "{}\n", e.what());
  return 1;
}
