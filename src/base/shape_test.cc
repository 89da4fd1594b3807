#include "base/shape.h"

#include <gtest/gtest.h>

#include "base/hash.h"

namespace sluice {
namespace {

TEST(Shape, CountsThatDoNotFitAreEmptyNeverWrapped) {
  EXPECT_EQ(element_count(Shape{}), 1u);
  EXPECT_EQ(element_count(Shape{2, 0, 5}), 0u);
  EXPECT_EQ(element_count(Shape{3, -1}), std::nullopt);
  EXPECT_EQ(element_count(Shape{1ll << 32, 1ll << 32}), std::nullopt);
  EXPECT_EQ(element_count(Shape{0, 1ll << 62, 4}), std::nullopt);
  EXPECT_EQ(byte_count(Shape{1ll << 61}, DType::f64), std::nullopt);
  EXPECT_EQ(byte_count(Shape{3, 5}, DType::bf16), 30u);
}

TEST(DType, NamesGoBothWays) {
  for (int i = 0; i <= static_cast<int>(DType::boolean); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
  }
  EXPECT_EQ(dtype_from_name("f12"), std::nullopt);
}

TEST(Xxh3, PiecesHashLikeTheWhole) {
  const std::vector<std::byte> bytes(100000, std::byte{7});
  Xxh3 whole, pieces;
  whole.update(bytes);
  for (std::size_t i = 0; i < bytes.size(); i += 1000) pieces.update(std::span(bytes).subspan(i, 1000));
  EXPECT_EQ(whole.hex(), pieces.hex());
  EXPECT_EQ(Xxh3().hex(), "2d06800538d394c2");  // XXH3_64bits of nothing, as the algorithm's specification gives it
}

}  // namespace
}  // namespace sluice
