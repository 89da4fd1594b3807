// The register tiles of paged attention: scores and weighted sums of a few query rows. For paged_attention.simd.cc alone.
//
// A score sums each lane along head_dim and then the lanes by one tree; a weighted sum takes its positions one by one: no
// result depends on the shape of the tile that made it. On the way a tile tells `meanwhile` how far it is.
#pragma once

#include "kernels/cpu/paged_attention_core.h"
#include "kernels/cpu/vector_math.h"

namespace sluice::SLUICE_LEVEL {
namespace {

constexpr bool kWide = kLanes == 16;
constexpr std::int64_t kSteps = 4;                   // between two words to `meanwhile`
constexpr std::int64_t kScoreRows = kWide ? 6 : 3;   // rows of a tile of scores at most: with 32 or 16 registers
constexpr std::int64_t kSumRows = kWide ? 6 : 4;     // rows of a tile of weighted sums at most
constexpr std::int64_t kSumVectors = kWide ? 4 : 3;  // its vectors along head_dim at most

// Rows of the block that starts at `row`, when `rows` rows are cut into blocks of at most `most`, as even as can be.
HWY_INLINE std::int64_t block_rows(std::int64_t rows, std::int64_t row, std::int64_t most) {
  const std::int64_t left = rows - row;
  const std::int64_t blocks = (left + most - 1) / most;
  return (left + blocks - 1) / blocks;
}

// The sums of the lanes of four vectors, each by the same tree (halves first), side by side.
#if HWY_TARGET == HWY_AVX2
HWY_INLINE void store_four_sums(Floats a, Floats b, Floats c, Floats d, float* to) {
  const __m256 ab =
      _mm256_add_ps(_mm256_permute2f128_ps(a.raw, b.raw, 0x20), _mm256_permute2f128_ps(a.raw, b.raw, 0x31));
  const __m256 cd =
      _mm256_add_ps(_mm256_permute2f128_ps(c.raw, d.raw, 0x20), _mm256_permute2f128_ps(c.raw, d.raw, 0x31));
  const __m256 two =
      _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));  // a a c c b b d d
  const __m256 one = _mm256_add_ps(two, _mm256_permute_ps(two, 0xb1));
  const __m128 ac = _mm256_castps256_ps128(one);
  const __m128 bd = _mm256_extractf128_ps(one, 1);
  _mm_storeu_ps(to, _mm_blend_ps(ac, _mm_permute_ps(bd, 0xa0), 0xa));  // a b c d
}
#else
HWY_INLINE void store_four_sums(Floats a, Floats b, Floats c, Floats d, float* to) {
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a.raw, b.raw, 0x44), _mm512_shuffle_f32x4(a.raw, b.raw, 0xee));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c.raw, d.raw, 0x44), _mm512_shuffle_f32x4(c.raw, d.raw, 0xee));
  const __m512 four = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));  // a b c d
  const __m512 two = _mm512_add_ps(four, _mm512_permute_ps(four, 0x4e));
  const __m512 one = _mm512_add_ps(two, _mm512_permute_ps(two, 0xb1));
  const __m512i pick = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
  _mm_storeu_ps(to, _mm512_castps512_ps128(_mm512_permutexvar_ps(pick, one)));
}
#endif

// Keeps the compiler from loading a vector again for every use: with few registers it folds loads into the arithmetic.
HWY_INLINE Floats in_register(Floats v) {
  if constexpr (!kWide) asm("" : "+x"(v.raw));
  return v;
}

// Scores of kRows query rows against kKeys keys.
// queries: [kRows, width]; keys: where each begins; scores: [kRows] rows, kSpan apart.
template <int kRows, typename K, typename Meanwhile>
HWY_INLINE void score_tile(const float* queries, const K* const* keys, std::int64_t width, float* scores,
                           Meanwhile& meanwhile) {
  Floats sums[kRows][kKeys];
  const K* key[kKeys];
  for (std::int64_t n = 0; n < kKeys; ++n) key[n] = keys[n];
  for (int m = 0; m < kRows; ++m) {
    for (std::int64_t n = 0; n < kKeys; ++n) sums[m][n] = zeros();
  }
  for (std::int64_t i = 0; i < width; i += kLanes) {
    if (i / kLanes % kSteps == 0) meanwhile.worked(kRows * kKeys * kLanes * kSteps);
    Floats q[kRows];
    for (int m = 0; m < kRows; ++m) q[m] = load(queries + m * width + i);
    for (std::int64_t n = 0; n < kKeys; ++n) {
      const Floats k = in_register(load(key[n] + i));
      for (int m = 0; m < kRows; ++m) sums[m][n] = hn::MulAdd(q[m], k, sums[m][n]);
    }
  }
  for (int m = 0; m < kRows; ++m) {
    store_four_sums(sums[m][0], sums[m][1], sums[m][2], sums[m][3], scores + m * kSpan);
  }
}

template <typename K, typename Meanwhile>
HWY_INLINE void score_rows(std::int64_t rows, const float* queries, const K* const* keys, std::int64_t width,
                           float* scores, Meanwhile& meanwhile) {
  switch (rows) {
    case 1:
      return score_tile<1>(queries, keys, width, scores, meanwhile);
    case 2:
      return score_tile<2>(queries, keys, width, scores, meanwhile);
    case 3:
      return score_tile<3>(queries, keys, width, scores, meanwhile);
    case 4:
      return score_tile<kWide ? 4 : 1>(queries, keys, width, scores, meanwhile);
    case 5:
      return score_tile<kWide ? 5 : 1>(queries, keys, width, scores, meanwhile);
    default:
      return score_tile<kWide ? 6 : 1>(queries, keys, width, scores, meanwhile);
  }
}

// What a weighted sum is made of: sums[m] += share[m][j] * values[j] over `count` positions.
template <typename V>
struct SumTask {
  const float* shares;     // rows kSpan apart
  const V* const* values;  // where each begins
  float* sums;             // [rows, width]
  std::int64_t count;
  std::int64_t width;
};

// Elements [first, first + kVectors vectors) of kRows rows.
template <int kRows, int kVectors, typename V, typename Meanwhile>
HWY_INLINE void sum_tile(const SumTask<V>& task, std::int64_t first, Meanwhile& meanwhile) {
  float* sums = task.sums + first;
  Floats s[kRows][kVectors];
  for (int m = 0; m < kRows; ++m) {
    for (int n = 0; n < kVectors; ++n) s[m][n] = load(sums + m * task.width + n * kLanes);
  }
  for (std::int64_t j = 0; j < task.count; ++j) {
    const V* value = task.values[j] + first;
    if (j % kSteps == 0) meanwhile.worked(kRows * kVectors * kLanes * kSteps);
    Floats v[kVectors];
    for (int n = 0; n < kVectors; ++n) v[n] = load(value + n * kLanes);
    for (int m = 0; m < kRows; ++m) {
      const Floats share = all(task.shares[m * kSpan + j]);
      for (int n = 0; n < kVectors; ++n) s[m][n] = hn::MulAdd(share, v[n], s[m][n]);
    }
  }
  for (int m = 0; m < kRows; ++m) {
    for (int n = 0; n < kVectors; ++n) store(s[m][n], sums + m * task.width + n * kLanes);
  }
}

template <int kRows, typename V, typename Meanwhile>
HWY_INLINE void sum_strips(const SumTask<V>& task, Meanwhile& meanwhile) {
  std::int64_t i = 0;
  for (; i + kSumVectors * kLanes <= task.width; i += kSumVectors * kLanes) {
    sum_tile<kRows, kSumVectors>(task, i, meanwhile);
  }
  for (; i + 2 * kLanes <= task.width; i += 2 * kLanes) sum_tile<kRows, 2>(task, i, meanwhile);
  for (; i < task.width; i += kLanes) sum_tile<kRows, 1>(task, i, meanwhile);
}

template <typename V, typename Meanwhile>
void sum_rows(std::int64_t rows, const SumTask<V>& task, Meanwhile& meanwhile) {
  switch (rows) {
    case 1:
      return sum_strips<1>(task, meanwhile);
    case 2:
      return sum_strips<2>(task, meanwhile);
    case 3:
      return sum_strips<3>(task, meanwhile);
    case 4:
      return sum_strips<4>(task, meanwhile);
    case 5:
      return sum_strips<kWide ? 5 : 1>(task, meanwhile);
    default:
      return sum_strips<kWide ? 6 : 1>(task, meanwhile);
  }
}

}  // namespace
}  // namespace sluice::SLUICE_LEVEL
