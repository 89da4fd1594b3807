#include "base/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>

#include "base/error.h"
#include "tests/support/message_of.h"

namespace sluice {
namespace {

using sluice::testing::message_of;

TEST(Json, IntegersAtTheEdgesOf64BitsSurvive) {
  const Json json =
      parse_json("[0, -9223372036854775808, 9223372036854775807, 9223372036854775808, 18446744073709551615]", "t");
  EXPECT_EQ(json.dump(-1), "[0,-9223372036854775808,9223372036854775807,9223372036854775808,18446744073709551615]");
  EXPECT_EQ(json.as_array("")[4].as_uint(""), UINT64_MAX);
  EXPECT_NE(message_of([&] { json.as_array("")[4].as_int("x"); }).find("x: expected an integer of 64 bits"),
            std::string::npos);
  EXPECT_THROW(json.as_array("")[1].as_uint("x"), Error);
  EXPECT_EQ(Json(std::uint64_t{7}), Json(std::int64_t{7}));
}

TEST(Json, DoublesRoundTripAndOneIsNoInteger) {
  const Json json = parse_json("[1.0, 1e3, 0.1, 2.5e-308]", "t");
  for (const Json& v : json.as_array("")) EXPECT_FALSE(v.is_integer());
  EXPECT_EQ(parse_json(json.dump(), "t"), json);
}

TEST(Json, DuplicateKeysAreRefusedAtAnyDepth) {
  EXPECT_NE(
      message_of([] { parse_json(R"({"a":{"b":1,"b":2}})", "f.json"); }).find("f.json: the key \"b\" occurs twice"),
      std::string::npos);
}

TEST(Json, ErrorsSayWhere) {
  EXPECT_NE(message_of([] { parse_json("{\"a\": }", "f.json"); }).find("f.json: not valid JSON at byte 7"),
            std::string::npos);
  for (const char* text : {"", " ", "{", "[1,", "nul", "{} x", "1e999", "\"\xff\"", "{1:2}"}) {
    EXPECT_NE(message_of([&] { parse_json(text, "f.json"); }).find("f.json"), std::string::npos) << text;
    EXPECT_EQ(message_of([&] { parse_json(text, "f.json"); }).find('\n'), std::string::npos) << text;
  }
}

TEST(Json, DeepNestingIsRefusedNotOverflowed) {
  EXPECT_NE(message_of([] { parse_json(std::string(100000, '['), "f.json"); }).find("nested deeper"),
            std::string::npos);
}

TEST(Json, OrderIsKeptAndSetReplaces) {
  Json json = parse_json(R"({"z":1,"a":2})", "t");
  json.set("z", 3).set("m", nullptr);
  EXPECT_EQ(json.dump(-1), R"({"z":3,"a":2,"m":null})");
}

TEST(Json, AByteOrderMarkIsSkipped) { EXPECT_EQ(parse_json("\xef\xbb\xbf[1]", "t").dump(-1), "[1]"); }

TEST(Json, WrongTypesNameTheValue) {
  const Json json = parse_json(R"({"h":"16"})", "t");
  EXPECT_EQ(message_of([&] { json.at("h", "t").as_int("t: h"); }),
            "t: h: expected an integer of 64 bits, found string \"16\"");
  EXPECT_EQ(message_of([&] { json.at("k", "t"); }), "t: the key \"k\" is missing");
}

}  // namespace
}  // namespace sluice
