#include "kernels/cpu/paged_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "base/executor.h"
#include "kernels/cpu/test_tensor.h"

namespace sluice {
namespace {

using test::all_within;
using test::equal_bits;
using test::kFloatTypes;
using test::RecordedCall;
using test::rounding;
using test::smallest_step;
using test::TestTensor;

struct Request {
  std::int32_t past = 0;
  std::int32_t added = 0;
  unsigned seed = 1;  // of its keys, values and queries, by position: the same request in any batch
};

struct Problem {
  std::vector<Request> requests = {};
  std::int64_t query_heads = 4;
  std::int64_t kv_heads = 2;
  std::int64_t head_dim = 32;
  std::int64_t block_size = 16;
  DType type = DType::f32;
  DType cache_type = DType::f32;
  unsigned page_seed = 0;           // order of the pages in the pool
  bool keep_blocks_mapped = false;  // those before the window too
  std::int64_t rotary_dim = 0;
  std::int64_t rotary_offset = 0;
  bool rotary_interleaved = false;
  bool norms = false;
  bool sink = false;
  bool packed_input = false;
  float scale = 0;
  float softcap = 0;
  std::int64_t window = -1;
};

// Element i of a head of a request at a position: a value that is the same wherever the request is put.
float content(unsigned seed, std::int64_t position, std::int64_t head, std::int64_t i) {
  std::uint64_t h = seed * 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(position) * 0xbf58476d1ce4e5b9u +
                    static_cast<std::uint64_t>(head) * 0x94d049bb133111ebu +
                    static_cast<std::uint64_t>(i) * 0x2545f4914f6cdd1du;
  h ^= h >> 29;
  h *= 0xbf58476d1ce4e5b9u;
  h ^= h >> 32;
  return (static_cast<float>(h & 0xffff) + static_cast<float>(h >> 16 & 0xffff)) / 32768.f -
         2.f;  // triangular, [-2, 2)
}

constexpr unsigned kKeySalt = 7001, kValueSalt = 7002, kQuerySalt = 7003;

// One call: buffers, pages and indices made from a Problem. Whatever no token may read is NaN.
class Call {
 public:
  explicit Call(const Problem& problem) : p(problem) {
    shape.rows = static_cast<std::int64_t>(p.requests.size());
    shape.query_heads = p.query_heads;
    shape.kv_heads = p.kv_heads;
    shape.head_dim = p.head_dim;
    shape.block_size = p.block_size;
    shape.rotary_dim = p.rotary_dim;
    cu.push_back(0);
    for (const Request& r : p.requests) {
      cu.push_back(cu.back() + r.added);
      past.push_back(r.past);
      if (p.rotary_dim > 0) shape.rotary_rows = std::max<std::int64_t>(shape.rotary_rows, r.past + r.added);
      const std::int64_t blocks = (r.past + r.added + p.block_size - 1) / p.block_size;
      shape.max_blocks_per_row = std::max(shape.max_blocks_per_row, blocks + 1);
      shape.num_blocks += blocks;
    }
    shape.tokens = cu.back();
    shape.num_blocks += 3;
    assign_pages();
    fill_cache();
    fill_inputs();
  }

  PagedAttentionArgs args() {
    PagedAttentionArgs a;
    a.shape = shape;
    a.indices = {cu.data(), past.data(), table.data(), slots.empty() ? nullptr : slots.data()};
    a.type = p.type;
    a.cache_type = p.cache_type;
    const std::int64_t query_width = p.query_heads * p.head_dim;
    const std::int64_t kv_width = p.kv_heads * p.head_dim;
    a.query = input.at(0);
    if (p.packed_input) {
      a.key = input.at(query_width);
      a.value = input.at(query_width + kv_width);
      a.query_stride = a.key_stride = a.value_stride = query_width + 2 * kv_width;
    } else {
      a.key = input.at(shape.tokens * query_width);
      a.value = input.at(shape.tokens * (query_width + kv_width));
      a.query_stride = query_width;
      a.key_stride = a.value_stride = kv_width;
    }
    a.key_cache = keys.data();
    a.value_cache = values.data();
    if (p.rotary_dim > 0) a.cos = cos.data();
    if (p.rotary_dim > 0) a.sin = sin.data();
    a.rotary_offset = p.rotary_offset;
    a.rotary_interleaved = p.rotary_interleaved;
    if (p.norms) a.q_norm_weight = q_norm.data();
    if (p.norms) a.k_norm_weight = k_norm.data();
    if (p.sink) a.head_sink = sink.data();
    a.scale = p.scale;
    a.softcap = p.softcap;
    a.window = p.window;
    a.output = output.data();
    return a;
  }

  void run(Level level, Executor& executor) {
    const PagedAttentionArgs a = args();
    ASSERT_TRUE(validate_paged_attention_indices(a.shape, a.indices, a.window).ok());
    std::vector<std::byte> scratch(paged_attention_scratch_bytes(a), std::byte{0xff});  // NaN wherever read unwritten
    paged_attention(level, a, scratch, executor);
  }

  std::int64_t slot(std::int64_t row, std::int64_t position) const {
    return std::int64_t{table[static_cast<std::size_t>(row * shape.max_blocks_per_row + position / p.block_size)]} *
               p.block_size +
           position % p.block_size;
  }

  // The tolerance of an output element against the specification. Scores: |error| <= steps * 2^-24 * |q| |k| scale, by
  // Cauchy-Schwarz, each sum of head_dim / lanes terms in line and a tree; where keys pass through norm or rotary they
  // may also round to a neighbour in the cache's type. A score error e moves a share by e^(2e); the weighted sum adds
  // one rounding a position of a segment and one a segment; then the output's own type.
  double tolerance() const {
    const double d = static_cast<double>(p.head_dim);
    const double scale = p.scale == 0 ? 1 / std::sqrt(d) : double{p.scale};
    const double norm = p.norms ? 1.8 * std::sqrt(d) : 2 * std::sqrt(d);
    const double key_step =
        p.norms || p.rotary_dim > 0 ? (p.cache_type == DType::f32 ? 8 * 0x1p-24 : 2 * rounding(p.cache_type)) : 0;
    const double size = norm * norm * scale * (p.cache_type == DType::f32 ? 1 : 1.01);
    const double score_error = ((d / 8 + 24) * 0x1p-24 + key_step) * size + 4 * 0x1p-24 * double{p.softcap};
    std::int64_t longest = 0;
    for (const Request& r : p.requests) longest = std::max<std::int64_t>(longest, r.past + r.added);
    const double sum_error = static_cast<double>(std::min<std::int64_t>(longest, 512) + longest / 512 + 8) * 0x1p-24;
    return 2 * (std::exp(2 * score_error) - 1 + sum_error + rounding(p.type)) + smallest_step(p.type);
  }

  Problem p;
  PagedAttentionShape shape;
  std::vector<std::int32_t> cu, past, table, slots;
  TestTensor input, keys, values, cos, sin, q_norm, k_norm, sink, output;

 private:
  void assign_pages() {
    std::vector<std::int32_t> pages(static_cast<std::size_t>(shape.num_blocks));
    std::iota(pages.begin(), pages.end(), 0);
    if (p.page_seed > 0) std::shuffle(pages.begin(), pages.end(), std::mt19937(p.page_seed));
    table.assign(static_cast<std::size_t>(shape.rows * shape.max_blocks_per_row), -1);
    std::size_t next = 0;
    for (std::int64_t row = 0; row < shape.rows; ++row) {
      const Request& r = p.requests[static_cast<std::size_t>(row)];
      // Blocks that lie before every token's window stay unmapped, as a scheduler that frees them leaves them.
      const bool all = p.window < 0 || p.keep_blocks_mapped;
      const std::int64_t first = all ? 0 : std::max<std::int64_t>(0, r.past - p.window + 1) / p.block_size;
      for (std::int64_t i = first; i * p.block_size < r.past + r.added; ++i) {
        table[static_cast<std::size_t>(row * shape.max_blocks_per_row + i)] = pages[next++];
      }
    }
  }

  void fill_cache() {
    const std::int64_t elements = shape.num_blocks * p.block_size * p.kv_heads * p.head_dim;
    keys = TestTensor(p.cache_type, elements, std::numeric_limits<float>::quiet_NaN());
    values = keys;
    for (std::int64_t row = 0; row < shape.rows; ++row) {
      const Request& r = p.requests[static_cast<std::size_t>(row)];
      const std::int64_t first = p.window < 0 ? 0 : std::max<std::int64_t>(0, r.past - p.window + 1);
      for (std::int64_t position = first; position < r.past; ++position) {
        for (std::int64_t h = 0; h < p.kv_heads; ++h) {
          const std::int64_t at = (slot(row, position) * p.kv_heads + h) * p.head_dim;
          for (std::int64_t i = 0; i < p.head_dim; ++i) {
            keys.set(at + i, content(r.seed + kKeySalt, position, h, i));
            values.set(at + i, content(r.seed + kValueSalt, position, h, i));
          }
        }
      }
    }
  }

  void fill_inputs() {
    const std::int64_t query_width = p.query_heads * p.head_dim;
    const std::int64_t kv_width = p.kv_heads * p.head_dim;
    const std::int64_t width = query_width + 2 * kv_width;
    input = TestTensor(p.type, shape.tokens * width);
    for (std::int64_t row = 0; row < shape.rows; ++row) {
      const Request& r = p.requests[static_cast<std::size_t>(row)];
      for (std::int64_t t = 0; t < r.added; ++t) {
        const std::int64_t token = cu[static_cast<std::size_t>(row)] + t;
        for (std::int64_t i = 0; i < width; ++i) {
          const bool is_query = i < query_width;
          const bool is_key = !is_query && i < query_width + kv_width;
          const unsigned salt = is_query ? kQuerySalt : is_key ? kKeySalt : kValueSalt;
          const std::int64_t j = is_query ? i : (i - query_width) % kv_width;
          const float x = content(r.seed + salt, r.past + t, j / p.head_dim, j % p.head_dim);
          if (p.packed_input) {
            input.set(token * width + i, x);
          } else if (is_query) {
            input.set(token * query_width + i, x);
          } else {
            const std::int64_t start = shape.tokens * (is_key ? query_width : query_width + kv_width);
            input.set(start + token * kv_width + j, x);
          }
        }
      }
    }
    output = TestTensor(p.type, shape.tokens * query_width, 99);
    q_norm = TestTensor::random(p.type, p.head_dim, 11, 0.1f, 1);
    k_norm = TestTensor::random(p.type, p.head_dim, 12, 0.1f, 1);
    sink = TestTensor::random(p.type, p.query_heads, 13);
    const std::int64_t pairs = p.rotary_dim / 2;
    cos = TestTensor(p.type, shape.rotary_rows * pairs);
    sin = cos;
    for (std::int64_t i = 0; i < cos.size(); ++i) {
      const double angle = static_cast<double>(i / pairs) *
                           std::pow(1000.0, -static_cast<double>(i % pairs) / static_cast<double>(pairs));
      cos.set(i, static_cast<float>(std::cos(angle)));
      sin.set(i, static_cast<float>(std::sin(angle)));
    }
  }
};

std::vector<Level> simd_levels() {
  std::vector<Level> levels = supported_levels();
  levels.erase(levels.begin());
  return levels;
}

void expect_agreement(const Problem& problem, const std::string& what) {
  SerialExecutor serial;
  Call expected(problem);
  expected.run(Level::scalar, serial);
  const double tolerance = expected.tolerance();
  for (const Level level : simd_levels()) {
    Call got(problem);
    got.run(level, serial);
    EXPECT_TRUE(all_within(got.output, expected.output, [&](std::int64_t) { return tolerance; }))
        << level_name(level) << " " << what;
    const bool exact = !problem.norms && problem.rotary_dim == 0;
    const double step = problem.cache_type == DType::f32 ? 16 * 0x1p-24 : 2 * rounding(problem.cache_type);
    EXPECT_TRUE(all_within(got.keys, expected.keys,
                           [&](std::int64_t i) {
                             return exact ? 0
                                          : step * (std::fabs(expected.keys[i]) + 1e-2) +
                                                (problem.cache_type == DType::f32 ? 0x1p-21 : 0);
                           }))
        << level_name(level) << " keys " << what;
    EXPECT_TRUE(all_within(got.values, expected.values, [](std::int64_t) { return 0.0; })) << level_name(level) << what;
  }
}

TEST(PagedAttention, EveryLevelAgreesWithTheSpecification) {
  const std::vector<Request> ragged{{0, 5, 1}, {37, 1, 2}, {0, 0, 3}, {600, 3, 4}, {64, 70, 5}, {0, 1, 6}};
  expect_agreement({.requests = ragged}, "plain");
  expect_agreement({.requests = ragged, .packed_input = true}, "packed input");
  expect_agreement({.requests = ragged, .head_dim = 20, .block_size = 7}, "odd head_dim and block_size");
  expect_agreement({.requests = ragged, .query_heads = 6, .kv_heads = 1, .head_dim = 64}, "group of 6");
  expect_agreement({.requests = ragged, .query_heads = 3, .kv_heads = 3, .head_dim = 48}, "no groups");
  expect_agreement({.requests = ragged, .query_heads = 16, .kv_heads = 2, .head_dim = 256}, "the real geometry");
  expect_agreement({.requests = {{3, 90, 1}}, .query_heads = 80, .kv_heads = 1, .head_dim = 16},
                   "a group beyond a tile");
  expect_agreement({.requests = {{1000, 130, 1}}, .window = 40}, "window");
  expect_agreement({.requests = {{700, 1, 1}, {699, 20, 2}}, .window = 1}, "window of one");
  expect_agreement({.requests = {{19000, 1, 1}, {17300, 2, 2}}, .query_heads = 2, .kv_heads = 1, .head_dim = 16},
                   "more segments than work items");
  expect_agreement({.requests = ragged, .softcap = 3}, "softcap");
  expect_agreement({.requests = ragged, .sink = true}, "sink");
  expect_agreement({.requests = ragged, .scale = 0.5f}, "scale");
}

TEST(PagedAttention, NormsAndRotaryAgreeWithTheSpecification) {
  const std::vector<Request> ragged{{0, 5, 1}, {37, 1, 2}, {600, 30, 4}};
  expect_agreement({.requests = ragged, .norms = true}, "norms");
  expect_agreement({.requests = ragged, .rotary_dim = 32}, "rotary, whole head");
  expect_agreement({.requests = ragged, .head_dim = 64, .rotary_dim = 16}, "rotary, partial");
  expect_agreement({.requests = ragged, .rotary_dim = 6, .rotary_interleaved = true}, "rotary, interleaved");
  expect_agreement({.requests = ragged,
                    .head_dim = 40,
                    .rotary_dim = 24,
                    .rotary_offset = 8,
                    .rotary_interleaved = true,
                    .norms = true,
                    .sink = true,
                    .softcap = 8,
                    .window = 33},
                   "everything");
}

TEST(PagedAttention, EveryTypeAndCacheTypeAgreesWithTheSpecification) {
  for (const DType type : kFloatTypes) {
    for (const DType cache_type : kFloatTypes) {
      const std::string what = std::string(dtype_name(type)) + " over " + std::string(dtype_name(cache_type));
      const std::vector<Request> ragged{{530, 1, 2}, {13, 40, 4}};
      expect_agreement({.requests = ragged, .head_dim = 64, .type = type, .cache_type = cache_type, .sink = true},
                       what);
      expect_agreement(
          {.requests = ragged, .head_dim = 24, .type = type, .cache_type = cache_type, .rotary_dim = 24, .norms = true},
          what);
    }
  }
}

TEST(PagedAttention, BitsDoNotDependOnThreads) {
  for (const Level level : simd_levels()) {
    const Problem problem{
        .requests = {{3000, 1, 1}, {0, 300, 2}, {1500, 4, 3}, {9, 1, 4}}, .query_heads = 8, .head_dim = 64};
    Call one(problem);
    SerialExecutor serial;
    one.run(level, serial);
    for (const int threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      Call many(problem);
      many.run(level, pool);
      EXPECT_TRUE(equal_bits(many.output, one.output)) << level_name(level) << " threads " << threads;
      EXPECT_TRUE(equal_bits(many.keys, one.keys)) << level_name(level) << " threads " << threads;
    }
  }
}

TEST(PagedAttention, BitsDependNeitherOnBlockSizeNorOnPageOrder) {
  SerialExecutor serial;
  for (const Level level : simd_levels()) {
    for (const DType cache_type : kFloatTypes) {
      Problem problem{.requests = {{1100, 1, 1}, {50, 90, 2}, {0, 33, 3}},
                      .head_dim = 48,
                      .cache_type = cache_type,
                      .rotary_dim = 16,
                      .norms = true};
      Call first(problem);
      first.run(level, serial);
      for (const std::int64_t block_size : {8, 16, 24, 64, 1}) {
        problem.block_size = block_size;
        problem.page_seed = static_cast<unsigned>(block_size);
        Call other(problem);
        other.run(level, serial);
        EXPECT_TRUE(equal_bits(other.output, first.output)) << level_name(level) << " block size " << block_size;
      }
    }
  }
}

TEST(PagedAttention, BitsDoNotDependOnCompany) {
  SerialExecutor serial;
  for (const Level level : simd_levels()) {
    const std::vector<Request> requests{{700, 1, 1}, {0, 200, 2}, {512, 2, 3}, {0, 0, 4}, {511, 1, 5}, {31, 65, 6}};
    const Problem batch_problem{.requests = requests, .query_heads = 6, .head_dim = 32, .page_seed = 3, .window = 300};
    Call batch(batch_problem);
    batch.run(level, serial);
    for (std::size_t row = 0; row < requests.size(); ++row) {
      Problem alone_problem = batch_problem;
      alone_problem.requests = {requests[row]};
      Call alone(alone_problem);
      alone.run(level, serial);
      const std::int64_t first = batch.cu[row] * 6 * 32;
      for (std::int64_t i = 0; i < alone.output.size(); ++i) {
        ASSERT_EQ(alone.output[i], batch.output[first + i]) << level_name(level) << " row " << row << " element " << i;
      }
    }
  }
}

// A request of `total` tokens run in pieces over its own growing cache; the outputs joined.
TestTensor run_in_pieces(Problem problem, const std::vector<std::int32_t>& pieces, Level level) {
  SerialExecutor serial;
  const std::int32_t total = problem.requests[0].past + std::accumulate(pieces.begin(), pieces.end(), 0);
  const std::int64_t width = problem.query_heads * problem.head_dim;
  TestTensor joined(problem.type, (total - problem.requests[0].past) * width);
  std::int32_t done = problem.requests[0].past;
  std::int64_t at = 0;
  TestTensor keys, values;
  for (const std::int32_t added : pieces) {
    Problem piece = problem;
    piece.keep_blocks_mapped = true;
    piece.requests[0].past = done;
    piece.requests[0].added = added;
    Call call(piece);
    const bool first = keys.size() == 0;
    for (std::int64_t i = 0; !first && i < std::min(keys.size(), call.keys.size()); ++i) {
      call.keys.set(i, keys[i]);  // pages in order and one request: the pool only grows
      call.values.set(i, values[i]);
    }
    call.run(level, serial);
    keys = call.keys;
    values = call.values;
    for (std::int64_t i = 0; i < added * width; ++i) joined.set(at++, call.output[i]);
    done += added;
  }
  return joined;
}

TEST(PagedAttention, BitsDoNotDependOnWhereARequestIsCut) {
  for (const Level level : simd_levels()) {
    for (const DType cache_type : kFloatTypes) {
      for (const std::int64_t window : {-1, 50}) {
        const Problem problem{.requests = {{490, 0, 1}},
                              .query_heads = 8,
                              .head_dim = 48,
                              .cache_type = cache_type,
                              .rotary_dim = 16,
                              .norms = true,
                              .sink = true,
                              .window = window};
        const TestTensor whole = run_in_pieces(problem, {110}, level);
        EXPECT_TRUE(equal_bits(run_in_pieces(problem, std::vector<std::int32_t>(110, 1), level), whole))
            << level_name(level) << " token by token, window " << window;
        EXPECT_TRUE(equal_bits(run_in_pieces(problem, {1, 63, 17, 29}, level), whole))
            << level_name(level) << " odd cuts, window " << window;
      }
    }
  }
}

TEST(PagedAttention, ACopiedCacheIsTheCacheUpdatedInPlace) {
  for (const Level level : supported_levels()) {
    const Problem problem{.requests = {{20, 3, 1}, {0, 9, 2}}, .cache_type = DType::bf16};
    ThreadPool pool(2);
    Call in_place(problem);
    in_place.run(level, pool);
    Call copied(problem);
    TestTensor key_source = copied.keys;
    TestTensor value_source = copied.values;
    copied.keys = TestTensor(DType::bf16, key_source.size(), 5);
    copied.values = copied.keys;
    PagedAttentionArgs args = copied.args();
    args.key_cache_in = key_source.data();
    args.value_cache_in = value_source.data();
    std::vector<std::byte> scratch(paged_attention_scratch_bytes(args));
    paged_attention(level, args, scratch, pool);
    EXPECT_TRUE(equal_bits(copied.output, in_place.output)) << level_name(level);
    EXPECT_TRUE(equal_bits(copied.keys, in_place.keys)) << level_name(level);
    EXPECT_TRUE(equal_bits(copied.values, in_place.values)) << level_name(level);
  }
}

TEST(PagedAttention, SlotMappingDecidesWhatIsWrittenAndTheTableWhatIsRead) {
  SerialExecutor serial;
  for (const Level level : supported_levels()) {
    const Problem problem{.requests = {{10, 4, 1}, {0, 2, 2}}};
    Call through_table(problem);
    through_table.run(level, serial);
    Call through_slots(problem);
    for (std::int64_t t = 0; t < 4; ++t)
      through_slots.slots.push_back(static_cast<std::int32_t>(through_slots.slot(0, 10 + t)));
    for (std::int64_t t = 0; t < 2; ++t)
      through_slots.slots.push_back(static_cast<std::int32_t>(through_slots.slot(1, t)));
    through_slots.run(level, serial);
    EXPECT_TRUE(equal_bits(through_slots.output, through_table.output)) << level_name(level);
    EXPECT_TRUE(equal_bits(through_slots.keys, through_table.keys)) << level_name(level);

    // Everything is in the cache already: nothing is written, and the result is the same.
    Call unwritten(problem);
    unwritten.keys = through_table.keys;
    unwritten.values = through_table.values;
    unwritten.input = TestTensor(DType::f32, unwritten.input.size(), 7);
    for (std::int64_t i = 0; i < 6 * 4 * 32; ++i) unwritten.input.set(i, through_table.input[i]);  // the queries alone
    unwritten.slots.assign(6, -1);
    unwritten.run(level, serial);
    EXPECT_TRUE(equal_bits(unwritten.output, through_table.output)) << level_name(level);
    EXPECT_TRUE(equal_bits(unwritten.keys, through_table.keys)) << level_name(level);
  }
}

TEST(PagedAttention, OfTwoTokensInOneSlotTheLaterStays) {
  for (const Level level : supported_levels()) {
    ThreadPool pool(3);
    Call call({.requests = {{10, 4, 1}}});
    call.slots.assign(4, static_cast<std::int32_t>(call.slot(0, 10)));
    for (std::int64_t t = 1; t < 4; ++t) {  // read by the later tokens: must hold something
      for (std::int64_t i = 0; i < 2 * 32; ++i) {
        call.keys.set(call.slot(0, 10 + t) * 2 * 32 + i, 0.5f);
        call.values.set(call.slot(0, 10 + t) * 2 * 32 + i, 0.5f);
      }
    }
    call.run(level, pool);
    for (std::int64_t i = 0; i < 2 * 32; ++i) {
      ASSERT_EQ(call.keys[call.slot(0, 10) * 2 * 32 + i], content(1 + kKeySalt, 13, i / 32, i % 32))
          << level_name(level);
    }
  }
}

TEST(PagedAttention, AnEmptyBatchAndEmptyRowsAreLegal) {
  SerialExecutor serial;
  for (const Level level : supported_levels()) {
    Call nothing({.requests = {}});
    nothing.run(level, serial);
    Call empty_rows({.requests = {{5, 0, 1}, {0, 0, 2}}});
    const TestTensor before = empty_rows.keys;
    empty_rows.run(level, serial);
    EXPECT_TRUE(equal_bits(empty_rows.keys, before)) << level_name(level);
  }
}

TEST(PagedAttention, LaterTokensInfinitiesDoNotReachBack) {
  SerialExecutor serial;
  for (const Level level : simd_levels()) {
    const Problem problem{.requests = {{100, 9, 1}}, .query_heads = 8};
    Call clean(problem);
    clean.run(level, serial);
    Call poisoned(problem);  // the last new token's own value: earlier tokens of its tile must not see it
    const std::int64_t value = 9 * (8 + 2) * 32 + 8 * 2 * 32;
    for (std::int64_t i = 0; i < 2 * 32; ++i) poisoned.input.set(value + i, std::numeric_limits<float>::infinity());
    poisoned.run(level, serial);
    for (std::int64_t i = 0; i < 8 * 8 * 32; ++i) ASSERT_EQ(poisoned.output[i], clean.output[i]) << level_name(level);
  }
}

// The recorded calls have dense caches [1, kv_heads, length, head_dim].
TEST(PagedAttention, AgreesWithTheRuntimesGroupQueryAttention) {
  struct Case {
    const char* name;
    std::int32_t past, added;
  };
  SerialExecutor serial;
  for (const Case& c : {Case{"gqa_S1_P3", 3, 1}, Case{"gqa_S3_P0", 0, 3}}) {
    const RecordedCall recorded(c.name);
    constexpr std::int64_t kHeads = 4, kKvHeads = 2, kDim = 8;
    for (const std::int64_t block_size : {1, 2, 16}) {
      Call call({.requests = {{c.past, c.added, 1}},
                 .query_heads = kHeads,
                 .kv_heads = kKvHeads,
                 .head_dim = kDim,
                 .block_size = block_size,
                 .page_seed = 2});
      std::int64_t at = 0;
      for (std::size_t in = 0; in < 3; ++in) {
        const TestTensor t = recorded.input_tensor(in);
        for (std::int64_t i = 0; i < t.size(); ++i) call.input.set(at++, t[i]);
      }
      const std::vector<double> past_keys = recorded.input(3);
      const std::vector<double> past_values = recorded.input(4);
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(past_keys.size()); ++i) {
        const std::int64_t head = i / (c.past * kDim), position = i / kDim % c.past;
        const std::int64_t to = (call.slot(0, position) * kKvHeads + head) * kDim + i % kDim;
        call.keys.set(to, static_cast<float>(past_keys[static_cast<std::size_t>(i)]));
        call.values.set(to, static_cast<float>(past_values[static_cast<std::size_t>(i)]));
      }
      for (const Level level : supported_levels()) {
        call.run(level, serial);
        EXPECT_TRUE(all_within(call.output, recorded.output("o"), [](std::int64_t) { return 32 * 0x1p-24; }))
            << c.name << " " << level_name(level) << " block size " << block_size;
      }
    }
  }
}

class PagedIndices : public ::testing::Test {
 protected:
  PagedIndices() {
    shape.tokens = 6;
    shape.rows = 2;
    shape.num_blocks = 10;
    shape.block_size = 4;
    shape.max_blocks_per_row = 3;
  }
  PagedIndexCheck check(std::int64_t window = -1) const {
    return validate_paged_attention_indices(
        shape, {cu.data(), past.data(), table.data(), slots.empty() ? nullptr : slots.data()}, window);
  }

  PagedAttentionShape shape;
  std::vector<std::int32_t> cu{0, 2, 6}, past{5, 0}, table{4, 5, -1, 9, -1, -1}, slots;
};

TEST_F(PagedIndices, GoodOnesPass) {
  EXPECT_TRUE(check().ok());
  slots = {-1, 0, 39, 5, 5, 5};
  EXPECT_TRUE(check().ok());
}

TEST_F(PagedIndices, OffsetsAreChecked) {
  cu[1] = 7;
  EXPECT_EQ(check().error, PagedIndexError::cu_seqlens);
  EXPECT_EQ(check().offsets.error, CuSeqlensError::decreasing);
  EXPECT_EQ(check().offsets.index, 2);
}

TEST_F(PagedIndices, LengthsAreCheckedWithoutOverflow) {
  past[1] = -1;
  EXPECT_EQ(check().error, PagedIndexError::past_negative);
  EXPECT_EQ(check().index, 1);
  past[1] = std::numeric_limits<std::int32_t>::max();
  EXPECT_EQ(check().error, PagedIndexError::too_long);
  EXPECT_EQ(check().value, std::int64_t{std::numeric_limits<std::int32_t>::max()} + 4);
  EXPECT_EQ(check().limit, 12);
  past[1] = 9;
  EXPECT_EQ(check().error, PagedIndexError::too_long);
  shape.max_blocks_per_row = std::numeric_limits<std::int64_t>::max() / 2;  // the product overflows: no limit then
  past[1] = 0;
  shape.rows = 1;
  shape.tokens = 2;
  EXPECT_TRUE(check().ok());
}

TEST_F(PagedIndices, BlocksInUseMustBeMappedAndInThePool) {
  table[1] = -1;
  PagedIndexCheck c = check();
  EXPECT_EQ(c.error, PagedIndexError::block_unmapped);
  EXPECT_EQ(c.index, 1);
  EXPECT_EQ(c.position, 4);
  table[1] = 10;
  EXPECT_EQ(check().error, PagedIndexError::block_out_of_range);
  EXPECT_EQ(check().value, 10);
  EXPECT_EQ(check().limit, 10);
  table[1] = -2;
  EXPECT_EQ(check().error, PagedIndexError::block_out_of_range);
  table[1] = 5;
  table[2] = 12345;  // not in use
  EXPECT_TRUE(check().ok());
}

TEST_F(PagedIndices, BlocksBeforeTheWindowMayBeUnmapped) {
  table[0] = -1;
  EXPECT_EQ(check().error, PagedIndexError::block_unmapped);
  EXPECT_TRUE(check(2).ok());    // the first new token, at 5, sees 4 and 5
  PagedIndexCheck c = check(3);  // and now 3
  EXPECT_EQ(c.error, PagedIndexError::block_unmapped);
  EXPECT_EQ(c.position, 3);
}

TEST_F(PagedIndices, RowsWithoutNewTokensUseNothing) {
  cu = {0, 0, 6};
  table = {-1, -1, -1, 9, 8, -7};
  EXPECT_TRUE(check().ok());
}

TEST_F(PagedIndices, SlotsAndRotaryRowsAreChecked) {
  slots = {0, 1, 40, 3, 4, 5};
  EXPECT_EQ(check().error, PagedIndexError::slot_out_of_range);
  EXPECT_EQ(check().index, 2);
  slots[2] = -2;
  EXPECT_EQ(check().error, PagedIndexError::slot_out_of_range);
  slots.clear();
  shape.rotary_dim = 8;
  shape.rotary_rows = 6;
  EXPECT_EQ(check().error, PagedIndexError::beyond_rotary);
  EXPECT_EQ(check().value, 7);
  shape.rotary_rows = 7;
  EXPECT_TRUE(check().ok());
}

TEST_F(PagedIndices, AnEmptyPoolOrPageSizeCannotBeUsed) {
  shape.num_blocks = 0;
  EXPECT_EQ(check().error, PagedIndexError::block_out_of_range);
  shape.block_size = 0;
  EXPECT_EQ(check().error, PagedIndexError::too_long);
}

}  // namespace
}  // namespace sluice
