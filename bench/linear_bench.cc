// Linear with bf16 weights read in place, at the shapes of a 0.8B hybrid and one larger, against ONNX Runtime's MatMul with
// the same weights as an fp32 initializer. Up to 16 rows the weights rotate through more memory than the caches hold, as
// the layers of a model do.
#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/float16.h"
#include "bench/peer.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/roofs.h"

namespace sluice::bench {
namespace {

constexpr std::int64_t kRotatingBytes = std::int64_t{512} << 20;  // of bf16
constexpr std::int64_t kFewRows = 16;

struct Shape {
  std::int64_t in;
  std::int64_t out;
};

constexpr Shape kShapes[] = {{1024, 3584}, {3584, 1024}, {1024, 6144}, {4096, 12288}, {1024, 248320}};
constexpr std::int64_t kRows[] = {1, 2, 4, 8, 16, 64, 128, 512};

// The weights of all shapes and copies, as views of one buffer: their values do not matter to time.
class Weights {
 public:
  Weights() : bits_(static_cast<std::size_t>(kRotatingBytes / 2)) {
    std::mt19937 random(3);
    for (auto& w : bits_) w = to_bf16(static_cast<float>(static_cast<int>(random() & 255) - 128) / 2048.f).bits;
  }
  WeightView view(const Shape& s, std::int64_t copy) const {
    return {reinterpret_cast<const std::byte*>(bits_.data() + copy * s.in * s.out), WeightFormat::bf16, s.out, s.in};
  }
  std::int64_t copies(const Shape& s, std::int64_t rows) const {
    return rows > kFewRows ? 1 : std::max<std::int64_t>(kRotatingBytes / 2 / (s.in * s.out), 1);
  }
  // [in, out] f32, as MatMul takes it.
  std::vector<float> transposed(const Shape& s, std::int64_t copy) const {
    std::vector<float> w(static_cast<std::size_t>(s.in * s.out));
    const std::uint16_t* from = bits_.data() + copy * s.in * s.out;
    for (std::int64_t n = 0; n < s.out; ++n) {
      for (std::int64_t k = 0; k < s.in; ++k)
        w[static_cast<std::size_t>(k * s.out + n)] = to_f32(bf16{from[n * s.in + k]});
    }
    return w;
  }

 private:
  std::vector<std::uint16_t> bits_;
};

// What is timed, and the best time of one product that was seen.
struct Case {
  std::string name;
  Shape shape;
  std::int64_t rows;
  int threads;
  Level level = Level::scalar;  // scalar: the peer's
  std::function<void()> run;    // one product
  double seconds = INFINITY;
};

// Activations and results of one shape and number of rows.
struct Buffers {
  std::vector<float> x, y;  // [rows, in], [rows, out] f32
  Buffers(const Shape& s, std::int64_t rows)
      : x(static_cast<std::size_t>(rows * s.in)), y(static_cast<std::size_t>(rows * s.out)) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    for (float& v : x) v = normal(random);
  }
};

class Suite {
 public:
  void add(const Shape& shape, std::int64_t rows, ThreadPool& pool) {
    auto buffers = std::make_shared<Buffers>(shape, rows);
    const std::string suffix = fmt::format("/K{}/N{}/M{}/threads{}", shape.in, shape.out, rows, pool.threads());
    for (const Level level : supported_levels()) {
      if (level == Level::scalar) continue;
      const auto next = std::make_shared<std::int64_t>(0);
      enlist(
          {fmt::format("sluice/{}{}", level_name(level), suffix), shape, rows, pool.threads(), level, [=, this, &pool] {
             const WeightView weight = weights_.view(shape, (*next)++ % weights_.copies(shape, rows));
             multiply(level, {rows, buffers->x.data(), shape.in, weight, nullptr, buffers->y.data(), shape.out}, pool);
           }});
    }
    add_peer(shape, rows, pool, suffix);
  }

  void run() {
    ::benchmark::RunSpecifiedBenchmarks();
    fmt::print("\n{:48} {:>10} {:>9} {:>7} {:>9} {:>7} {:>8} {:>10}\n", "case", "us", "GB/s", "% read", "GFLOP/s",
               "% FMA", "% tiles", "x MatMul");
    for (const auto& c : cases_) print_row(*c);
  }

 private:
  // The scratch is kept, as a session's arena keeps it.
  void multiply(Level level, const LinearArgs& args, ThreadPool& pool) {
    scratch_.resize(std::max(scratch_.size(), linear_scratch_bytes(level, args)));
    linear(level, args, scratch_, pool);
  }

  void enlist(Case given) {
    cases_.push_back(std::make_unique<Case>(std::move(given)));
    Case* c = cases_.back().get();
    ::benchmark::RegisterBenchmark(
        c->name.c_str(),
        [c, this](::benchmark::State& state) {
          if (c->level == Level::scalar) check(*c);
          for (auto _ : state) {
            const auto start = std::chrono::steady_clock::now();
            c->run();
            const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
            state.SetIterationTime(seconds);
            c->seconds = std::min(c->seconds, seconds);
          }
        })
        ->UseManualTime()
        ->Unit(::benchmark::kMicrosecond);
  }

  // MatMul over as many sessions as weights rotate, made when first run, one shape at a time.
  void add_peer(const Shape& shape, std::int64_t rows, ThreadPool& pool, const std::string& suffix) {
    if (shape.in * shape.out > (std::int64_t{1} << 27)) return;  // half a gigabyte of initializer, and packed once more
    auto buffers = std::make_shared<Buffers>(shape, rows);
    const auto next = std::make_shared<std::size_t>(0);
    enlist({"MatMul" + suffix, shape, rows, pool.threads(), Level::scalar, [=, this, &pool] {
              auto& sessions = peers(shape, rows, pool.threads(), *buffers);
              sessions[(*next)++ % sessions.size()]->run();
            }});
    checks_[cases_.back().get()] = [=, this, &pool] { check_peer(shape, rows, pool, *buffers); };
  }

  std::vector<std::unique_ptr<Peer>>& peers(const Shape& shape, std::int64_t rows, int threads, Buffers& buffers) {
    const std::string key = fmt::format("{} {} {} {}", shape.in, shape.out, rows, threads);
    if (key == peers_key_) return peers_;
    peers_.clear();
    peers_key_ = key;
    const std::int64_t copies =
        std::max<std::int64_t>(rows > kFewRows ? 1 : kRotatingBytes / 2 / 2 / (shape.in * shape.out), 1);
    for (std::int64_t copy = 0; copy < copies; ++copy) {
      std::vector<float> w = weights_.transposed(shape, copy);
      const PeerTensor x{"x", DType::f32, {rows, shape.in}, buffers.x.data()};
      const PeerTensor weight{"w", DType::f32, {shape.in, shape.out}, w.data(), true};
      const PeerTensor y{"y", DType::f32, {rows, shape.out}, buffers.y.data()};
      peers_.push_back(std::make_unique<Peer>(PeerNode{"", "MatMul", {x, weight}, {y}, {}}, threads));
    }
    return peers_;
  }

  void check(const Case& c) {
    if (const auto at = checks_.find(&c); at != checks_.end()) at->second();
  }

  // Both sum K products in f32 in some order: each may be off by K * 2^-24 of the sum of magnitudes.
  void check_peer(const Shape& shape, std::int64_t rows, ThreadPool& pool, Buffers& theirs) {
    peers(shape, rows, pool.threads(), theirs).front()->run();
    double largest_x = 0;
    for (const float v : theirs.x) largest_x = std::max(largest_x, std::abs(double{v}));
    const double bound = 2.0 * static_cast<double>(shape.in * shape.in) * 0x1p-24 * largest_x / 16;
    for (const Level level : supported_levels()) {
      if (level == Level::scalar) continue;
      std::vector<float> y(theirs.y.size());
      multiply(level, {rows, theirs.x.data(), shape.in, weights_.view(shape, 0), nullptr, y.data(), shape.out}, pool);
      for (std::size_t i = 0; i < y.size(); ++i) {
        const double difference = std::abs(double{y[i]} - theirs.y[i]);
        if (!(difference <= bound)) fail("element {}: {} and MatMul's {}, not timing them", i, y[i], theirs.y[i]);
      }
    }
  }

  const Roofs& roofs_of(Level level, int threads) {
    const auto key = std::make_pair(level, threads);
    auto at = roofs_.find(key);
    if (at == roofs_.end()) {
      ThreadPool pool(threads);
      at = roofs_.emplace(key, measure_roofs(level, pool, static_cast<std::size_t>(kRotatingBytes))).first;
      fmt::print("{}\n", describe(level, at->second));
    }
    return at->second;
  }

  void print_row(const Case& c) {
    if (!std::isfinite(c.seconds)) return;
    const bool ours = c.level != Level::scalar;
    const double macs = static_cast<double>(c.rows * c.shape.in * c.shape.out);
    const double gbs = static_cast<double>(c.shape.in * c.shape.out) * (ours ? 2 : 4) / c.seconds / 1e9;
    const double gflops = 2 * macs / c.seconds / 1e9;
    const Roofs& roofs = roofs_of(ours ? c.level : best_level(), c.threads);
    double peer = NAN;
    for (const auto& other : cases_) {
      const bool same = other->shape.in == c.shape.in && other->shape.out == c.shape.out && other->rows == c.rows;
      if (other->level == Level::scalar && same && other->threads == c.threads) peer = other->seconds;
    }
    fmt::print("{:48} {:10.1f} {:9.2f} {:7.1f} {:9.1f} {:7.1f} {:8.1f} {:10.2f}\n", c.name, c.seconds * 1e6, gbs,
               100 * gbs / roofs.read_gbs, gflops, 100 * gflops / roofs.fma_gflops,
               roofs.tile_gflops > 0 && ours ? 100 * gflops / roofs.tile_gflops : 0, c.seconds / peer);
  }

  Weights weights_;
  std::vector<std::byte> scratch_;
  std::vector<std::unique_ptr<Case>> cases_;
  std::map<const Case*, std::function<void()>> checks_;
  std::map<std::pair<Level, int>, Roofs> roofs_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::string peers_key_;
};

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) try {
  benchmark::Initialize(&argc, argv);
  sluice::bench::Suite suite;
  std::vector<std::unique_ptr<sluice::ThreadPool>> pools;
  for (const int threads : {1, 2}) pools.push_back(std::make_unique<sluice::ThreadPool>(threads));
  for (const auto& pool : pools) {
    for (const auto& shape : sluice::bench::kShapes) {
      for (const std::int64_t rows : sluice::bench::kRows) {
        if (shape.out > 100000 && rows > 1) continue;
        suite.add(shape, rows, *pool);
      }
    }
  }
  suite.run();
} catch (const sluice::Error& e) {
  fmt::print(stderr, "{}\n", e.what());
  return 1;
}
