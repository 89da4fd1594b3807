// MoE with bf16 weights read in place, at the geometries of two hybrids, against ONNX Runtime's MoE with the same weights in
// f32: swiglu with gate and up rows in turn, the one form of it that runs there on a CPU. It takes its weights as inputs:
// as initializers they would exceed a model's 2 GB. The shared expert of a layer is a Linear or two beside this operator.
//
// One token goes round several choices of experts, so that their weights come from memory as those of a model's layers do.
// The roof of a case is the slower of two: its multiply-adds at the machine's FMA rate, the bytes of the experts that were
// chosen at its read bandwidth. Usage: moe_bench [seconds a case] [name part]
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/float16.h"
#include "bench/peer.h"
#include "bench/timing.h"
#include "kernels/cpu/moe.h"
#include "kernels/cpu/roofs.h"

namespace sluice::bench {
namespace {

constexpr std::int64_t kChoices = 16;   // of experts, that a small case goes round
constexpr std::int64_t kChecked = 2;    // tokens held against the specification
constexpr std::int64_t kManyRows = 64;  // tokens from which one choice is enough

std::size_t count(std::int64_t elements) { return static_cast<std::size_t>(elements); }

// Experts of both sides with the same values: multiples of 2^-11 up to 1/16, which bf16 holds.
class Experts {
 public:
  explicit Experts(const MoeShape& s) : gate_up_(count(s.experts * 2 * s.intermediate * s.hidden)) {
    down_.resize(gate_up_.size() / 2);
    std::mt19937 random(3);
    for (auto* list : {&gate_up_, &down_}) {
      for (bf16& w : *list) w = to_bf16(static_cast<float>(static_cast<int>(random() & 255) - 128) / 2048.f);
    }
    theirs_down_.resize(down_.size());
    std::transform(down_.begin(), down_.end(), theirs_down_.begin(), [](bf16 w) { return to_f32(w); });
    theirs_gate_up_.resize(gate_up_.size());
    const std::int64_t rows = 2 * s.intermediate;
    for (std::int64_t row = 0; row < s.experts * rows; ++row) {
      const std::int64_t at = row % rows < s.intermediate ? row % rows * 2 : (row % rows - s.intermediate) * 2 + 1;
      const bf16* from = gate_up_.data() + row * s.hidden;
      float* to = theirs_gate_up_.data() + (row / rows * rows + at) * s.hidden;
      std::transform(from, from + s.hidden, to, [](bf16 w) { return to_f32(w); });
    }
  }

  const std::byte* gate_up() const { return reinterpret_cast<const std::byte*>(gate_up_.data()); }  // [E, 2I, H] bf16
  const std::byte* down() const { return reinterpret_cast<const std::byte*>(down_.data()); }        // [E, H, I] bf16
  float* theirs_gate_up() { return theirs_gate_up_.data(); }  // [E, 2I, H] f32, gate and up rows in turn
  float* theirs_down() { return theirs_down_.data(); }        // [E, H, I] f32

 private:
  std::vector<bf16> gate_up_, down_;
  std::vector<float> theirs_gate_up_, theirs_down_;
};

// Tokens and their router logits, kChoices times; one choice is distinct_experts * expert bytes of weights.
struct Inputs {
  explicit Inputs(const MoeShape& s) : shape(s), choices(s.tokens < kManyRows ? kChoices : 1) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    x.resize(count(choices * s.tokens * s.hidden));
    logits.resize(count(choices * s.tokens * s.experts));
    for (auto* list : {&x, &logits}) {
      for (float& v : *list) v = normal(random);
    }
  }
  float* x_of(std::int64_t choice) { return x.data() + choice % choices * shape.tokens * shape.hidden; }
  float* logits_of(std::int64_t choice) { return logits.data() + choice % choices * shape.tokens * shape.experts; }

  // Of a choice, on average.
  double distinct_experts() const {
    std::int64_t distinct = 0;
    for (std::int64_t choice = 0; choice < choices; ++choice) {
      std::set<std::int64_t> chosen;
      for (std::int64_t t = 0; t < shape.tokens; ++t) {
        const float* row = logits.data() + (choice * shape.tokens + t) * shape.experts;
        std::vector<std::int64_t> order(count(shape.experts));
        for (std::size_t e = 0; e < order.size(); ++e) order[e] = static_cast<std::int64_t>(e);
        std::partial_sort(order.begin(), order.begin() + shape.k, order.end(),
                          [row](std::int64_t a, std::int64_t b) { return row[a] > row[b]; });
        chosen.insert(order.begin(), order.begin() + shape.k);
      }
      distinct += static_cast<std::int64_t>(chosen.size());
    }
    return static_cast<double>(distinct) / static_cast<double>(choices);
  }

  MoeShape shape;
  std::int64_t choices;
  std::vector<float> x, logits;
};

class Ours {
 public:
  Ours(Level level, Inputs& in, const Experts& experts, Executor& executor)
      : level_(level), in_(in), executor_(executor) {
    args_.shape = in.shape;
    const GateUp halves = split_gate_up(experts.gate_up(), WeightFormat::bf16, in.shape);
    args_.gate = halves.gate;
    args_.up = halves.up;
    args_.down = dense_experts(experts.down(), WeightFormat::bf16, in.shape.hidden, in.shape.intermediate);
    output.resize(count(in.shape.tokens * in.shape.hidden));
    args_.y = output.data();
    scratch_.resize(moe_scratch_bytes(level, args_));
  }
  void run() {
    args_.x = in_.x_of(choice_);
    args_.router_logits = in_.logits_of(choice_++);
    moe(level_, args_, scratch_, executor_);
  }
  // The specification's answer for the first tokens of the first choice.
  std::vector<float> specified() const {
    MoeArgs args = args_;
    args.shape.tokens = std::min(kChecked, args.shape.tokens);
    args.x = in_.x_of(0);
    args.router_logits = in_.logits_of(0);
    std::vector<float> y(count(args.shape.tokens * args.shape.hidden));
    args.y = y.data();
    std::vector<std::byte> scratch(moe_scratch_bytes(Level::scalar, args));
    SerialExecutor serial;
    moe(Level::scalar, args, scratch, serial);
    return y;
  }

  std::vector<float> output;

 private:
  Level level_;
  Inputs& in_;
  Executor& executor_;
  std::int64_t choice_ = 0;
  MoeArgs args_;
  std::vector<std::byte> scratch_;
};

class Theirs {
 public:
  Theirs(Inputs& in, Experts& experts, int threads) : in_(in) {
    const MoeShape& s = in.shape;
    output.resize(count(s.tokens * s.hidden));
    PeerNode node{"com.microsoft", "MoE", {}, {}, {}};
    node.inputs = {{"x", DType::f32, {s.tokens, s.hidden}, in.x.data()},
                   {"router", DType::f32, {s.tokens, s.experts}, in.logits.data()},
                   {"fc1", DType::f32, {s.experts, 2 * s.intermediate, s.hidden}, experts.theirs_gate_up()},
                   {},
                   {"fc2", DType::f32, {s.experts, s.hidden, s.intermediate}, experts.theirs_down()}};
    node.outputs = {{"y", DType::f32, {s.tokens, s.hidden}, output.data()}};
    node.attributes = {{"k", s.k},
                       {"activation_type", "swiglu"},
                       {"swiglu_fusion", std::int64_t{1}},
                       {"normalize_routing_weights", std::int64_t{1}}};
    peer_ = std::make_unique<Peer>(node, threads);
  }
  void run() {
    peer_->rebind("x", in_.x_of(choice_));
    peer_->rebind("router", in_.logits_of(choice_++));
    peer_->run();
  }

  std::vector<float> output;

 private:
  Inputs& in_;
  std::int64_t choice_ = 0;
  std::unique_ptr<Peer> peer_;
};

void check(const std::vector<float>& expected, const std::vector<float>& found, const std::string& whose) {
  float largest = 0;
  for (const float v : expected) largest = std::max(largest, std::fabs(v));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const bool close = std::fabs(found[i] - expected[i]) <= 1e-5f * largest;
    if (!close) fail("{}, element {}: {} instead of {}, not timing it", whose, i, found[i], expected[i]);
  }
}

void print_row(const Timed& timed, const Inputs& in, const Roofs& roofs, double theirs) {
  const double expert = static_cast<double>(3 * in.shape.intermediate * in.shape.hidden);  // elements
  const double flops = 2 * expert * static_cast<double>(in.shape.tokens * in.shape.k);
  const double bytes = 2 * expert * in.distinct_experts();
  const double arithmetic = flops / roofs.fma_gflops / 1e9;
  const double reading = bytes / roofs.read_gbs / 1e9;
  fmt::print(
      "  {:14} {:9.0f} us {:6.1f} of {:5.1f} GFLOP/s {:6.1f} of {:5.1f} GB/s   {:5.1f} % of the {} roof   {:.3f} of "
      "theirs\n",
      timed.name, timed.seconds * 1e6, flops / timed.seconds / 1e9, roofs.fma_gflops, bytes / timed.seconds / 1e9,
      roofs.read_gbs, 100 * std::max(arithmetic, reading) / timed.seconds, arithmetic > reading ? "FMA" : "read",
      timed.seconds / theirs);
}

void run_case(const std::string& name, const MoeShape& shape, Experts& experts, int threads, double budget) {
  Inputs in(shape);
  ThreadPool pool(threads);
  Theirs theirs(in, experts, threads);
  theirs.run();
  std::vector<Timed> bodies{{"ONNX Runtime's", [&] { theirs.run(); }}};
  std::vector<std::pair<Level, std::unique_ptr<Ours>>> ours;
  for (const Level level : supported_levels()) {
    if (level == Level::scalar) continue;
    ours.emplace_back(level, std::make_unique<Ours>(level, in, experts, pool));
    Ours* mine = ours.back().second.get();
    mine->run();
    const std::vector<float> expected = mine->specified();
    check(expected, mine->output, std::string(level_name(level)));
    check(expected, theirs.output, "ONNX Runtime's MoE");
    bodies.push_back({fmt::format("sluice {}", level_name(level)), [mine] { mine->run(); }});
  }
  time_in_turns(bodies, budget, 3);
  fmt::print("{}, {} thread{}: ONNX Runtime's MoE {:.0f} us\n", name, threads, threads > 1 ? "s" : "",
             bodies[0].seconds * 1e6);
  for (std::size_t i = 0; i < ours.size(); ++i) {
    print_row(bodies[i + 1], in, measure_roofs(ours[i].first, pool), bodies[0].seconds);
  }
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) try {
  using namespace sluice;
  const double budget = argc > 1 ? std::strtod(argv[1], nullptr) : 3;
  const std::string part = argc > 2 ? argv[2] : "";
  const MoeShape geometries[] = {{0, 2048, 512, 256, 8}, {0, 2048, 768, 128, 8}};
  for (const MoeShape& geometry : geometries) {
    std::unique_ptr<bench::Experts> experts;  // made when first needed
    for (const int threads : {1, 2}) {
      for (const std::int64_t tokens : {1, 16, 512}) {
        MoeShape shape = geometry;
        shape.tokens = tokens;
        const std::string name = fmt::format("{} of {} experts of {} x {}, {} token{}", shape.k, shape.experts,
                                             shape.intermediate, shape.hidden, tokens, tokens > 1 ? "s" : "");
        if (name.find(part) == std::string::npos) continue;
        if (!experts) experts = std::make_unique<bench::Experts>(geometry);
        bench::run_case(name, shape, *experts, threads, budget);
      }
    }
  }
} catch (const sluice::Error& e) {
  fmt::print(stderr, "{}\n", e.what());
  return 1;
}
