#include "tokenizer/token_decoder.h"

#include <gtest/gtest.h>

#include "base/json.h"

namespace sluice {
namespace {

const std::filesystem::path kFolder = std::filesystem::path(SLUICE_SOURCE_DIR) / "tests/data/goldens/tokenizer-qwen35";

std::vector<std::int64_t> ids_of(const Json& value) {
  std::vector<std::int64_t> ids;
  for (const Json& id : value.as_array("ids")) ids.push_back(id.as_int("id"));
  return ids;
}

TEST(TokenDecoder, DecodesEveryRecordedString) {
  const TokenDecoder decoder(kFolder / "tokenizer.json");
  const Json expected = read_json(kFolder / "tokenizer_expected.json");
  int compared = 0;
  for (const char* group : {"cases", "invalid_utf8_ids"}) {
    for (const Json& row : expected.at(group, "expected").as_array(group)) {
      const auto ids = ids_of(row.at("ids", group));
      EXPECT_EQ(decoder.decode(ids, false), row.at("decode", group).as_string("decode"));
      if (const Json* skipped = row.find("decode_skip_special")) {
        EXPECT_EQ(decoder.decode(ids, true), skipped->as_string("skip"));
      }
      ++compared;
    }
  }
  EXPECT_GT(compared, 200);
}

TEST(TokenDecoder, IdsOutsideTheVocabularyGiveNothing) {
  const TokenDecoder decoder(kFolder / "tokenizer.json");
  const std::vector<std::int64_t> ids{-1, 1 << 30};
  EXPECT_EQ(decoder.decode(ids, false), "");
}

TEST(Utf8, EachMaximalBrokenPartBecomesOneReplacement) {
  const std::string r = "\xef\xbf\xbd";
  EXPECT_EQ(to_valid_utf8("a\xe2\x82"), "a" + r);       // cut short
  EXPECT_EQ(to_valid_utf8("\xc0\xaf"), r + r);          // overlong
  EXPECT_EQ(to_valid_utf8("\xed\xa0\x80"), r + r + r);  // surrogate
  EXPECT_EQ(to_valid_utf8("\xf0\x9f\x98\x80"), "\xf0\x9f\x98\x80");
  EXPECT_EQ(to_valid_utf8("\xf4\x90\x80\x80"), r + r + r + r);  // beyond U+10FFFF
}

}  // namespace
}  // namespace sluice
