// PagedAttention at the attention geometry of the hybrids (head_dim 256, 2 kv heads) against ONNX Runtime's
// GroupQueryAttention over a dense cache bound in place: decode over a long past, and prefill.
//
// Decode goes round the caches of several layers, as a model does, so that they come from memory and not from the last
// level cache. The roof of a case is the slower of two: its multiply-adds at the machine's FMA rate, and plainly reading
// the same caches once, both measured in the same turns as the kernels. The best read bandwidth of a short moment is
// printed beside them. Usage: paged_attention_bench [seconds a case] [name part]
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
#include "bench/best_roofs.h"
#include "bench/peer.h"
#include "bench/timing.h"
#include "kernels/cpu/paged_attention.h"
#include "kernels/cpu/roofs.h"

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
  // Layers whose f32 caches are 256 MB together; one for prefill, where arithmetic is what counts.
  std::int64_t layers() const { return added > 1 ? 1 : std::max<std::int64_t>(1, (32 << 20) / kv_elements()); }
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

// The paged caches of all layers in one type, each layer holding the same values; both levels read them.
class Caches {
 public:
  Caches(const Inputs& in, DType t) : type(t) {
    const Geometry& g = in.geometry;
    table.resize(static_cast<std::size_t>((g.total() + kBlock - 1) / kBlock));
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), std::mt19937(3));  // pages of a long-lived pool lie anywhere
    keys.assign(static_cast<std::size_t>(g.layers()), paged(in.keys));
    values.assign(static_cast<std::size_t>(g.layers()), paged(in.values));
  }

  DType type;
  std::vector<std::int32_t> table;
  std::vector<std::vector<std::byte>> keys, values;

 private:
  std::vector<std::byte> paged(const std::vector<float>& dense) const {
    constexpr std::int64_t kRow = kKvHeads * kDim;
    std::vector<float> pages(table.size() * kBlock * kRow);
    for (std::int64_t p = 0; p * kRow < static_cast<std::int64_t>(dense.size()); ++p) {
      const std::int64_t slot = table[static_cast<std::size_t>(p / kBlock)] * kBlock + p % kBlock;
      std::copy_n(dense.data() + p * kRow, kRow, pages.data() + slot * kRow);
    }
    return narrowed(pages.data(), pages.size(), type);
  }
};

class Ours {
 public:
  Ours(Level level, const Inputs& in, Caches& caches, ThreadPool& pool) : level_(level), pool_(pool), caches_(caches) {
    const Geometry& g = in.geometry;
    const auto blocks = static_cast<std::int64_t>(caches.table.size());
    offsets_ = {0, static_cast<std::int32_t>(g.added)};
    past_ = {static_cast<std::int32_t>(g.past)};
    output.resize(in.queries.size());
    args_.shape = {g.added, 1, g.query_heads, kKvHeads, kDim, blocks, kBlock, blocks, 0, 0};
    args_.indices = {offsets_.data(), past_.data(), caches.table.data(), nullptr};
    args_.cache_type = caches.type;
    args_.query = in.queries.data();
    args_.key = in.keys.data() + g.past * kKvHeads * kDim;
    args_.value = in.values.data() + g.past * kKvHeads * kDim;
    args_.query_stride = g.query_heads * kDim;
    args_.key_stride = args_.value_stride = kKvHeads * kDim;
    args_.output = output.data();
    scratch_.resize(paged_attention_scratch_bytes(args_));
  }
  void run() {
    args_.key_cache = caches_.keys[layer_].data();
    args_.value_cache = caches_.values[layer_].data();
    layer_ = (layer_ + 1) % caches_.keys.size();
    paged_attention(level_, args_, scratch_, pool_);
  }

  std::vector<float> output;

 private:
  Level level_;
  ThreadPool& pool_;
  Caches& caches_;
  std::size_t layer_ = 0;
  std::vector<std::int32_t> offsets_, past_;
  std::vector<std::byte> scratch_;
  PagedAttentionArgs args_;
};

class Theirs {
 public:
  Theirs(const Inputs& in, int threads) : output(in.queries.size()) {
    const Geometry& g = in.geometry;
    keys_.assign(static_cast<std::size_t>(g.layers()), heads_first(in.keys, g.total()));
    values_.assign(static_cast<std::size_t>(g.layers()), heads_first(in.values, g.total()));
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
                   {"pk", DType::f32, cache, keys_[0].data()},
                   {"pv", DType::f32, cache, values_[0].data()},
                   {"lengths", DType::i32, {1}, lengths_.data()},
                   {"total", DType::i32, {}, total_.data()}};
    node.outputs = {{"o", DType::f32, {1, g.added, g.query_heads * kDim}, output.data()},
                    {"prk", DType::f32, cache, keys_[0].data()},
                    {"prv", DType::f32, cache, values_[0].data()}};
    peer_ = std::make_unique<Peer>(node, threads);
  }
  void run() {
    if (keys_.size() > 1) {
      layer_ = (layer_ + 1) % keys_.size();
      for (const char* name : {"pk", "prk"}) peer_->rebind(name, keys_[layer_].data());
      for (const char* name : {"pv", "prv"}) peer_->rebind(name, values_[layer_].data());
    }
    peer_->run();
  }

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

  std::vector<std::vector<float>> keys_, values_;  // [layers][kv heads, total, dim]
  std::size_t layer_ = 0;
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

// Reads the caches of one layer after the other: what a decode step does at least. Never the layer that the kernel, which
// takes turns with it, read last.
class Reader {
 public:
  Reader(Level level, const Caches& caches, ThreadPool& pool)
      : level_(level), pool_(pool), caches_(caches), layer_(caches.keys.size() / 2) {}
  void run() {
    read_through(level_, caches_.keys[layer_], pool_);
    read_through(level_, caches_.values[layer_], pool_);
    layer_ = (layer_ + 1) % caches_.keys.size();
  }

 private:
  Level level_;
  ThreadPool& pool_;
  const Caches& caches_;
  std::size_t layer_;
};

struct Entry {
  Level level;
  DType type;
  std::unique_ptr<Ours> ours;
  std::unique_ptr<Reader> reader;
};

double kv_bytes(const Geometry& g, DType type) {
  return 2 * static_cast<double>(g.kv_elements()) * static_cast<double>(dtype_bytes(type));
}

void print_row(const Geometry& g, DType type, const Timed& timed, const Timed& reading, const Roofs& roofs,
               double theirs) {
  const double bytes = g.added == 1 ? kv_bytes(g, type) : 0;
  const double arithmetic = g.flops() / roofs.fma_gflops / 1e9;
  const double roof = g.added == 1 ? std::max(arithmetic, reading.seconds) : arithmetic;
  fmt::print(
      "  {:20} {:9.0f} us {:6.1f} of {:5.1f} GFLOP/s {:6.1f} of {:5.1f} GB/s (at best {:4.1f})   {:5.1f} % of the {} "
      "roof "
      "  {:.3f} of theirs\n",
      timed.name, timed.seconds * 1e6, g.flops() / timed.seconds / 1e9, roofs.fma_gflops, bytes / timed.seconds / 1e9,
      bytes / reading.seconds / 1e9, roofs.read_gbs, 100 * roof / timed.seconds, roof == arithmetic ? "FMA" : "read",
      timed.seconds / theirs);
}

void run_case(const std::string& name, const Geometry& geometry, int threads, double budget) {
  const Inputs inputs(geometry);
  ThreadPool pool(threads);
  Theirs theirs(inputs, threads);
  theirs.run();
  std::vector<std::unique_ptr<Caches>> caches;
  std::vector<Entry> entries;
  std::vector<Timed> bodies{{"GroupQueryAttention f32", [&] { theirs.run(); }}};
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    caches.push_back(std::make_unique<Caches>(inputs, type));
    for (const Level level : vector_levels()) {
      entries.push_back({level, type, std::make_unique<Ours>(level, inputs, *caches.back(), pool),
                         std::make_unique<Reader>(level, *caches.back(), pool)});
      Ours* mine = entries.back().ours.get();
      Reader* reader = entries.back().reader.get();
      mine->run();
      check(mine->output, theirs.output, type);
      bodies.push_back({"reading", [reader] { reader->run(); }});
      bodies.push_back({fmt::format("sluice {} {}", level_name(level), dtype_name(type)), [mine] { mine->run(); }});
    }
  }
  BestRoofs roofs;
  for (int turn = 0; turn < 3; ++turn) {
    roofs.measure(pool);
    time_in_turns(bodies, budget / 3, 3);
  }
  fmt::print("{} with {} query heads, {} thread{}: GroupQueryAttention {:.0f} us\n", name, geometry.query_heads,
             threads, threads > 1 ? "s" : "", bodies[0].seconds * 1e6);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    print_row(geometry, entries[i].type, bodies[2 * i + 2], bodies[2 * i + 1], roofs.of(entries[i].level),
              bodies[0].seconds);
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
