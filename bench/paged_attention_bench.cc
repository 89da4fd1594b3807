// PagedAttention at the attention geometry of the hybrids (head_dim 256, 2 kv heads) against ONNX Runtime's
// GroupQueryAttention over a dense cache bound in place: decode over a long past, and prefill.
//
// The roof of a case is the slower of two: its multiply-adds at the machine's FMA rate, its cache bytes at its read
// bandwidth, both measured in the same turns as the kernels. Usage: paged_attention_bench [seconds a case] [name part]
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/float16.h"
#include "bench/peer.h"
#include "bench/roofs.h"
#include "bench/timing.h"
#include "kernels/cpu/paged_attention.h"

namespace sluice::bench {
namespace {

constexpr std::int64_t kKvHeads = 2;
constexpr std::int64_t kDim = 256;
constexpr std::int64_t kBlock = 16;

struct Geometry {
  std::int64_t query_heads;
  std::int64_t past;
  std::int64_t added;

  std::int64_t total() const { return past + added; }
  std::int64_t kv_elements() const { return total() * kKvHeads * kDim; }
  // A token at position p: p + 1 dot products of kDim and as many weighted sums a head, two operations each.
  double flops() const {
    const double pairs = static_cast<double>(added) * static_cast<double>(2 * past + added + 1) / 2;
    return pairs * static_cast<double>(query_heads * kDim) * 4;
  }
};

// Values for the whole sequence, which both sides take: [total, kv heads, dim] keys and values, [added, heads, dim] queries.
struct Inputs {
  explicit Inputs(const Geometry& g)
      : geometry(g), keys(g.kv_elements()), values(g.kv_elements()), queries(g.added * g.query_heads * kDim) {
    std::mt19937 random(5);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (auto* list : {&keys, &values, &queries}) {
      for (float& x : *list) x = uniform(random);
    }
  }
  Geometry geometry;
  std::vector<float> keys, values, queries;
};

std::vector<std::byte> narrowed(const float* from, std::size_t count, DType type) {
  std::vector<std::byte> bytes(count * dtype_bytes(type));
  for (std::size_t i = 0; i < count; ++i) {
    if (type == DType::f32) reinterpret_cast<float*>(bytes.data())[i] = from[i];
    if (type == DType::f16) reinterpret_cast<f16*>(bytes.data())[i] = to_f16(from[i]);
    if (type == DType::bf16) reinterpret_cast<bf16*>(bytes.data())[i] = to_bf16(from[i]);
  }
  return bytes;
}

class Ours {
 public:
  Ours(Level level, const Inputs& in, DType cache_type, ThreadPool& pool) : level_(level), pool_(pool) {
    const Geometry& g = in.geometry;
    const std::int64_t blocks = (g.total() + kBlock - 1) / kBlock;
    table_.resize(static_cast<std::size_t>(blocks));
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), std::mt19937(3));  // pages of a long-lived pool lie anywhere
    keys_ = paged(in.keys, cache_type);
    values_ = paged(in.values, cache_type);
    offsets_ = {0, static_cast<std::int32_t>(g.added)};
    past_ = {static_cast<std::int32_t>(g.past)};
    output.resize(in.queries.size());
    PagedAttentionShape& shape = args_.shape;
    shape = {g.added, 1, g.query_heads, kKvHeads, kDim, blocks, kBlock, blocks, 0, 0};
    args_.indices = {offsets_.data(), past_.data(), table_.data(), nullptr};
    args_.cache_type = cache_type;
    args_.query = in.queries.data();
    args_.key = in.keys.data() + g.past * kKvHeads * kDim;
    args_.value = in.values.data() + g.past * kKvHeads * kDim;
    args_.query_stride = g.query_heads * kDim;
    args_.key_stride = args_.value_stride = kKvHeads * kDim;
    args_.key_cache = keys_.data();
    args_.value_cache = values_.data();
    args_.output = output.data();
    scratch_.resize(paged_attention_scratch_bytes(args_));
  }
  void run() { paged_attention(level_, args_, scratch_, pool_); }

  std::vector<float> output;

 private:
  std::vector<std::byte> paged(const std::vector<float>& dense, DType type) const {
    constexpr std::int64_t kRow = kKvHeads * kDim;
    std::vector<float> pages(table_.size() * kBlock * kRow);
    for (std::int64_t p = 0; p * kRow < static_cast<std::int64_t>(dense.size()); ++p) {
      const std::int64_t slot = table_[static_cast<std::size_t>(p / kBlock)] * kBlock + p % kBlock;
      std::copy_n(dense.data() + p * kRow, kRow, pages.data() + slot * kRow);
    }
    return narrowed(pages.data(), pages.size(), type);
  }

  Level level_;
  ThreadPool& pool_;
  std::vector<std::int32_t> table_, offsets_, past_;
  std::vector<std::byte> keys_, values_, scratch_;
  PagedAttentionArgs args_;
};

class Theirs {
 public:
  Theirs(const Inputs& in, int threads) : output(in.queries.size()) {
    const Geometry& g = in.geometry;
    keys_ = heads_first(in.keys, g.total());
    values_ = heads_first(in.values, g.total());
    lengths_ = {static_cast<std::int32_t>(g.total() - 1)};
    total_ = {static_cast<std::int32_t>(g.total())};
    const std::vector<std::int64_t> cache{1, kKvHeads, g.total(), kDim};
    const auto data = [](const float* p) { return const_cast<float*>(p); };
    const float* new_keys = in.keys.data() + g.past * kKvHeads * kDim;
    const float* new_values = in.values.data() + g.past * kKvHeads * kDim;
    PeerNode node{
        "com.microsoft", "GroupQueryAttention", {}, {}, {{"num_heads", g.query_heads}, {"kv_num_heads", kKvHeads}}};
    node.inputs = {{"q", DType::f32, {1, g.added, g.query_heads * kDim}, data(in.queries.data())},
                   {"k", DType::f32, {1, g.added, kKvHeads * kDim}, data(new_keys)},
                   {"v", DType::f32, {1, g.added, kKvHeads * kDim}, data(new_values)},
                   {"pk", DType::f32, cache, keys_.data()},
                   {"pv", DType::f32, cache, values_.data()},
                   {"lengths", DType::i32, {1}, lengths_.data()},
                   {"total", DType::i32, {}, total_.data()}};
    node.outputs = {{"o", DType::f32, {1, g.added, g.query_heads * kDim}, output.data()},
                    {"prk", DType::f32, cache, keys_.data()},
                    {"prv", DType::f32, cache, values_.data()}};
    peer_ = std::make_unique<Peer>(node, threads);
  }
  void run() { peer_->run(); }

  std::vector<float> output;

 private:
  static std::vector<float> heads_first(const std::vector<float>& dense, std::int64_t total) {
    std::vector<float> out(dense.size());
    for (std::int64_t p = 0; p < total; ++p) {
      for (std::int64_t h = 0; h < kKvHeads; ++h) {
        std::copy_n(dense.data() + (p * kKvHeads + h) * kDim, kDim, out.data() + (h * total + p) * kDim);
      }
    }
    return out;
  }

  std::vector<float> keys_, values_;
  std::vector<std::int32_t> lengths_, total_;
  std::unique_ptr<Peer> peer_;
};

// Averages of unit-range values over many positions: f32 sums differ by a few 1e-7; a 16-bit cache by its rounding.
void check(const std::vector<float>& ours, const std::vector<float>& theirs, DType cache_type) {
  const double allowed = cache_type == DType::f32 ? 5e-6 : cache_type == DType::f16 ? 2e-3 : 1.5e-2;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const double difference = std::abs(double{ours[i]} - double{theirs[i]});
    if (!(difference <= allowed))
      fail("element {}: {} where GroupQueryAttention has {}: not timing this", i, ours[i], theirs[i]);
  }
}

struct Entry {
  Level level;
  DType cache_type;
};

void run_case(const std::string& name, const Geometry& geometry, int threads, double budget) {
  const Inputs inputs(geometry);
  ThreadPool pool(threads);
  Theirs theirs(inputs, threads);
  theirs.run();
  std::vector<Entry> entries;
  std::vector<std::unique_ptr<Ours>> ours;
  std::vector<Timed> bodies{{"GroupQueryAttention f32", [&] { theirs.run(); }}};
  for (const Level level : supported_levels()) {
    if (level == Level::scalar) continue;
    for (const DType cache_type : {DType::f32, DType::f16, DType::bf16}) {
      ours.push_back(std::make_unique<Ours>(level, inputs, cache_type, pool));
      Ours& mine = *ours.back();
      mine.run();
      check(mine.output, theirs.output, cache_type);
      entries.push_back({level, cache_type});
      bodies.push_back({fmt::format("sluice {} {}", level_name(level), dtype_name(cache_type)), [&] { mine.run(); }});
    }
  }
  const auto kv_bytes = [&](DType type) {
    return 2.0 * static_cast<double>(geometry.kv_elements()) * static_cast<double>(dtype_bytes(type));
  };
  Roofs wide[2];
  const auto roofs_again = [&] {
    for (const Level level : {Level::avx2, Level::avx512}) {
      if (level > best_level()) continue;
      const Roofs now = measure_roofs(level, pool, static_cast<std::size_t>(kv_bytes(DType::f32)));
      Roofs& best = wide[level == Level::avx512];
      best.fma_gflops = std::max(best.fma_gflops, now.fma_gflops);
      best.read_gbs = std::max(best.read_gbs, now.read_gbs);
    }
  };
  for (int turn = 0; turn < 3; ++turn) {
    roofs_again();
    time_in_turns(bodies, budget / 3, 3);
  }
  fmt::print("{} with {} query heads, {} thread{}: GroupQueryAttention {:.0f} us\n", name, geometry.query_heads,
             threads, threads > 1 ? "s" : "", bodies[0].seconds * 1e6);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const double seconds = bodies[i + 1].seconds;
    const Roofs& roofs = wide[entries[i].level == Level::avx512];
    const double bytes = geometry.added == 1 ? kv_bytes(entries[i].cache_type) : 0;
    const double arithmetic = geometry.flops() / roofs.fma_gflops / 1e9;
    const double reading = bytes / roofs.read_gbs / 1e9;
    fmt::print(
        "  {:20} {:9.0f} us {:6.1f} of {:5.1f} GFLOP/s {:6.1f} of {:5.1f} GB/s   {:5.1f} % of the {} roof   {:.3f} of "
        "theirs\n",
        bodies[i + 1].name, seconds * 1e6, geometry.flops() / seconds / 1e9, roofs.fma_gflops, bytes / seconds / 1e9,
        roofs.read_gbs, 100 * std::max(arithmetic, reading) / seconds, arithmetic > reading ? "FMA" : "read",
        seconds / bodies[0].seconds);
  }
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) try {
  using sluice::bench::Geometry;
  const double budget = argc > 1 ? std::strtod(argv[1], nullptr) : 3;
  const std::string part = argc > 2 ? argv[2] : "";
  const std::pair<const char*, Geometry> cases[] = {{"decode 4k", {16, 4095, 1}},   {"decode 4k", {8, 4095, 1}},
                                                    {"decode 32k", {16, 32767, 1}}, {"decode 32k", {8, 32767, 1}},
                                                    {"prefill 2k", {16, 0, 2048}},  {"prefill 2k", {8, 0, 2048}}};
  for (const int threads : {1, 2}) {
    for (const auto& [name, geometry] : cases) {
      if (std::string(name).find(part) != std::string::npos) sluice::bench::run_case(name, geometry, threads, budget);
    }
  }
} catch (const sluice::Error& e) {
  fmt::print(stderr, "{}\n", e.what());
  return 1;
}
