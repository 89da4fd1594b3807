#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint_testing.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::raw_safetensors;
using testing::safetensors_bytes;
using testing::TempFolder;

SafetensorsContent parse(std::string_view bytes) {
  return parse_safetensors(std::as_bytes(std::span(bytes.data(), bytes.size())), "file.safetensors");
}

std::string parse_error(const std::string& bytes) {
  return error_of([&] { parse(bytes); });
}

std::string entry(std::string_view name, std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape, offsets);
}

TEST(Safetensors, ViewsTensorsInPlaceSortedByName) {
  const std::string bytes = safetensors_bytes(
      {{"b", "F32", {1}, "wxyz"}, {"a", "BF16", {2, 1}, "0123"}, {"e", "U8", {0, 7}, ""}, {"s", "I8", {}, "!"}});
  const auto content = parse(bytes);
  ASSERT_EQ(content.entries.size(), 4u);
  EXPECT_EQ(content.entries[0].name, "a");
  EXPECT_EQ(content.entries[0].view.dtype, DType::bf16);
  EXPECT_THAT(content.entries[0].view.shape, ElementsAre(2, 1));
  EXPECT_EQ(static_cast<const void*>(content.entries[0].view.bytes.data()), bytes.data() + content.entries[0].offset);
  EXPECT_EQ(std::string_view(bytes).substr(content.entries[0].offset, 4), "0123");
  EXPECT_EQ(std::string_view(bytes).substr(content.entries[1].offset, 4), "wxyz");
  EXPECT_EQ(content.entries[2].view.bytes.size(), 0u);
  EXPECT_TRUE(content.entries[3].view.shape.empty());
}

TEST(Safetensors, KnowsEveryDType) {
  for (const auto& [name, bytes] : std::vector<std::pair<std::string, std::size_t>>{{"F64", 8},
                                                                                    {"F32", 4},
                                                                                    {"F16", 2},
                                                                                    {"BF16", 2},
                                                                                    {"F8_E4M3", 1},
                                                                                    {"F8_E5M2", 1},
                                                                                    {"I64", 8},
                                                                                    {"I32", 4},
                                                                                    {"I16", 2},
                                                                                    {"I8", 1},
                                                                                    {"U64", 8},
                                                                                    {"U32", 4},
                                                                                    {"U16", 2},
                                                                                    {"U8", 1},
                                                                                    {"BOOL", 1}}) {
    const auto content = parse(safetensors_bytes({{"t", name, {3}, std::string(3 * bytes, 'x')}}));
    EXPECT_EQ(safetensors_dtype(content.entries.at(0).view.dtype), name);
    EXPECT_EQ(dtype_bytes(content.entries.at(0).view.dtype), bytes);
  }
}

TEST(Safetensors, ReadsMetadataPaddingAndAnyUtf8Name) {
  const std::string name = "модель.層.😀 \\\"\\n";
  const auto content = parse(raw_safetensors(
      "{\"__metadata__\":{\"format\":\"pt\",\"k\":\"\"}," + entry(name, "U8", "[1]", "[0,1]") + "}   ", "x"));
  EXPECT_THAT(content.metadata, ElementsAre(std::pair<std::string, std::string>("format", "pt"),
                                            std::pair<std::string, std::string>("k", "")));
  EXPECT_EQ(content.entries.at(0).name, "модель.層.😀 \"\n");
}

TEST(Safetensors, AcceptsAFileWithoutTensors) { EXPECT_TRUE(parse(raw_safetensors("{}")).entries.empty()); }

TEST(Safetensors, RefusesShortFilesAndBadHeaderLengths) {
  for (std::size_t size = 0; size < 8; ++size) {
    EXPECT_THAT(parse_error(std::string(size, '\0')),
                AllOf(HasSubstr("file.safetensors"), HasSubstr(fmt::format("{} bytes", size)),
                      HasSubstr("8-byte header length")));
  }
  EXPECT_THAT(parse_error(std::string(8, '\0')), HasSubstr("header is empty"));
  EXPECT_THAT(parse_error(std::string(8, '\xff') + "{}"),
              AllOf(HasSubstr("18446744073709551615"), HasSubstr("2 bytes")));
  for (const std::uint64_t length : {3ull, 1ull << 32, (1ull << 63) - 1, ~0ull - 7, ~0ull - 8}) {
    std::string bytes = raw_safetensors("{}");
    std::memcpy(bytes.data(), &length, sizeof length);
    EXPECT_THAT(parse_error(bytes), AllOf(HasSubstr(std::to_string(length)), HasSubstr("2 bytes")));
  }
}

TEST(Safetensors, RefusesAHeaderBeyondTheFormatsLimit) {
  std::string bytes(100'000'001 + 8 + 1, ' ');
  const std::uint64_t length = 100'000'001;
  std::memcpy(bytes.data(), &length, sizeof length);
  EXPECT_THAT(parse_error(bytes), AllOf(HasSubstr("100000001"), HasSubstr("at most 100000000")));
}

TEST(Safetensors, NamesThePlaceWhereAHeaderIsNotJson) {
  for (const std::string header :
       {"{", "{\"a\":", "{\"a\" 1}", "{]", "nonsense", "{}{}", "{'a':1}", "{\"a\":1,}", "\x01\x02", "{\"\xff\":1}"}) {
    EXPECT_THAT(parse_error(raw_safetensors(header)),
                AllOf(HasSubstr("file.safetensors: header"), HasSubstr("at byte")))
        << header;
  }
  for (const std::string header : {"[]", "1", "\"x\"", "null", "true", "[{}]"}) {
    EXPECT_THAT(parse_error(raw_safetensors(header)),
                AllOf(HasSubstr("file.safetensors"), HasSubstr("header must be an object")))
        << header;
  }
  EXPECT_THAT(parse_error(raw_safetensors(" {}")), HasSubstr("must begin with '{'"));
  EXPECT_THAT(parse_error(raw_safetensors(std::string(200'000, '['))), HasSubstr("nested deeper"));
}

TEST(Safetensors, RefusesDuplicateNames) {
  const std::string header = "{" + entry("dup", "U8", "[1]", "[0,1]") + "," + entry("dup", "U8", "[1]", "[1,2]") + "}";
  EXPECT_THAT(parse_error(raw_safetensors(header, "xy")), AllOf(HasSubstr("dup"), HasSubstr("twice")));
}

TEST(Safetensors, RefusesEntriesOfAWrongKind) {
  const auto error = [](std::string_view value) {
    return parse_error(raw_safetensors(fmt::format("{{\"tensor\":{}}}", value), "xxxxxxxx"));
  };
  for (const std::string value : {"1", "[]", "null", "\"F32\""})
    EXPECT_THAT(error(value), AllOf(HasSubstr("tensor"), HasSubstr("object")));
  EXPECT_THAT(error(R"({"shape":[2],"data_offsets":[0,8]})"), AllOf(HasSubstr("\"tensor\""), HasSubstr("dtype")));
  EXPECT_THAT(error(R"({"dtype":"F32","data_offsets":[0,8]})"), HasSubstr("\"shape\" is missing"));
  EXPECT_THAT(error(R"({"dtype":"F32","shape":[2]})"), HasSubstr("\"data_offsets\" is missing"));
  EXPECT_THAT(error(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":1})"), HasSubstr("unknown key \"more\""));
  for (const std::string dtype : {"\"f32\"", "\"F8_E8M0\"", "\"F4\"", "\"\"", "7", "null"}) {
    EXPECT_THAT(error(fmt::format(R"({{"dtype":{},"shape":[2],"data_offsets":[0,8]}})", dtype)),
                AllOf(HasSubstr("dtype"), HasSubstr(dtype), HasSubstr("BF16")));
  }
  for (const std::string shape : {"2", "[-1]", "[2.0]", "[\"2\"]", "null", "[[2]]", "[9223372036854775808]", "[1e3]"}) {
    EXPECT_THAT(error(fmt::format(R"({{"dtype":"F32","shape":{},"data_offsets":[0,8]}})", shape)),
                AllOf(HasSubstr("\"tensor\""), HasSubstr("shape")));
  }
  for (const std::string offsets :
       {"8", "[0]", "[0,8,9]", "[-1,8]", "[0,8.0]", "[\"0\",8]", "null", "[0,18446744073709551616]"}) {
    EXPECT_THAT(error(fmt::format(R"({{"dtype":"F32","shape":[2],"data_offsets":{}}})", offsets)),
                AllOf(HasSubstr("\"tensor\""), HasSubstr("data_offsets")));
  }
  EXPECT_THAT(parse_error(raw_safetensors(R"({"__metadata__":{"format":1}})")),
              AllOf(HasSubstr("__metadata__"), HasSubstr("format")));
  EXPECT_THAT(parse_error(raw_safetensors(R"({"__metadata__":[]})")), HasSubstr("__metadata__"));
}

TEST(Safetensors, RefusesRangesOutsideTheFile) {
  const auto error = [](std::string_view offsets, std::string_view shape) {
    return parse_error(raw_safetensors("{" + entry("tensor", "U8", shape, offsets) + "}", "12345678"));
  };
  EXPECT_THAT(error("[0,9]", "[9]"), AllOf(HasSubstr("\"tensor\""), HasSubstr("byte 9"), HasSubstr("the file has 8")));
  EXPECT_THAT(error("[8,18446744073709551615]", "[1]"), HasSubstr("18446744073709551615"));
  EXPECT_THAT(error("[18446744073709551615,18446744073709551615]", "[0]"), HasSubstr("18446744073709551615"));
  EXPECT_THAT(error("[5,4]", "[1]"), AllOf(HasSubstr("\"tensor\""), HasSubstr("[5, 4]")));
}

TEST(Safetensors, RefusesSizesThatContradictShapeAndDType) {
  const auto error = [](std::string_view dtype, std::string_view shape) {
    return parse_error(raw_safetensors("{" + entry("tensor", dtype, shape, "[0,8]") + "}", "12345678"));
  };
  EXPECT_THAT(error("F32", "[3]"), AllOf(HasSubstr("\"tensor\""), HasSubstr("[3]"), HasSubstr("F32"),
                                         HasSubstr("12 bytes"), HasSubstr("hold 8")));
  EXPECT_THAT(error("F32", "[]"), HasSubstr("4 bytes"));
  EXPECT_THAT(error("F32", "[0]"), HasSubstr("0 bytes"));
  // 2^32 * 2^32 * 2 wraps to 0, 2^62 * 4 + ... to the right size: neither may pass.
  for (const std::string shape : {"[4294967296,4294967296,2]", "[4611686018427387905,2]",
                                  "[9223372036854775807,9223372036854775807]", "[9223372036854775807,0,3]"}) {
    EXPECT_THAT(error("F32", shape),
                AllOf(HasSubstr("\"tensor\""), ::testing::AnyOf(HasSubstr("overflows"), HasSubstr("0 bytes"))))
        << shape;
  }
}

TEST(Safetensors, RefusesOverlapsAndHoles) {
  const auto error = [](std::string_view first, std::string_view a, std::string_view second, std::string_view b) {
    return parse_error(
        raw_safetensors("{" + entry("one", "U8", a, first) + "," + entry("two", "U8", b, second) + "}", "12345678"));
  };
  EXPECT_THAT(error("[0,5]", "[5]", "[4,8]", "[4]"), AllOf(HasSubstr("one"), HasSubstr("[0, 5]"), HasSubstr("two"),
                                                           HasSubstr("[4, 8]"), HasSubstr("overlap")));
  EXPECT_THAT(error("[4,8]", "[4]", "[0,5]", "[5]"), AllOf(HasSubstr("one"), HasSubstr("two"), HasSubstr("overlap")));
  EXPECT_THAT(error("[0,8]", "[8]", "[0,8]", "[8]"), HasSubstr("overlap"));
  EXPECT_THAT(error("[0,8]", "[8]", "[3,3]", "[0]"), HasSubstr("overlap"));
  EXPECT_THAT(error("[0,3]", "[3]", "[4,8]", "[4]"),
              AllOf(HasSubstr("[3, 4]"), HasSubstr("two"), HasSubstr("no holes")));
  EXPECT_THAT(error("[1,4]", "[3]", "[4,8]", "[4]"), AllOf(HasSubstr("[0, 1]"), HasSubstr("one")));
  EXPECT_THAT(error("[0,3]", "[3]", "[3,6]", "[3]"), AllOf(HasSubstr("[6, 8]"), HasSubstr("after the last")));
  EXPECT_THAT(parse_error(raw_safetensors("{}", "x")), HasSubstr("[0, 1]"));
}

TEST(Safetensors, NamesTheFirstTensorThatATruncationCuts) {
  const std::string whole =
      safetensors_bytes({{"z", "U8", {100}, std::string(100, 'z')}, {"a", "U8", {100}, std::string(100, 'a')}});
  EXPECT_THAT(
      parse_error(whole.substr(0, whole.size() - 1)),
      AllOf(HasSubstr("\"a\""), HasSubstr("byte 200"), HasSubstr("the 200 bytes"), HasSubstr("the file has 199")));
  EXPECT_THAT(parse_error(whole.substr(0, whole.size() - 100 - 1)), HasSubstr("\"z\""));
  for (std::size_t size = 0; size < whole.size(); ++size)
    parse_error(whole.substr(0, size));  // each an Error, none a crash
}

TEST(Safetensors, SurvivesEveryFlippedByteOfAHeader) {
  const std::string whole = safetensors_bytes({{"first", "F32", {2, 1}, "01234567"}, {"second", "BF16", {2}, "0123"}});
  for (std::size_t i = 0; i + 12 < whole.size(); ++i) {
    for (const int flip : {1, 2, 16, 128, 255}) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ flip);
      try {
        for (const SafetensorsEntry& e : parse(damaged).entries) {
          ASSERT_LE(e.offset + e.view.bytes.size(), damaged.size());
        }
      } catch (const Error& error) {
        ASSERT_THAT(error.what(), HasSubstr("file.safetensors"));
      }
    }
  }
}

TEST(SafetensorsFile, FindsTensorsAndStaysValidWhenMoved) {
  const TempFolder folder;
  folder.write("x.safetensors", safetensors_bytes({{"b", "U8", {2}, "bb"}, {"a", "U8", {1}, "a"}}));
  SafetensorsFile first(folder / "x.safetensors");
  const SafetensorsEntry* b = first.find("b");
  const SafetensorsFile file = std::move(first);
  EXPECT_EQ(file.find("b"), b);
  EXPECT_EQ(static_cast<char>(b->view.bytes[1]), 'b');
  EXPECT_EQ(file.find("c"), nullptr);
  EXPECT_EQ(file.find(""), nullptr);
  EXPECT_THAT(error_of([&] { file.at("c"); }), AllOf(HasSubstr("x.safetensors"), HasSubstr("\"c\"")));
}

TEST(SafetensorsFile, RefusesWhatIsNoRegularFile) {
  const TempFolder folder;
  EXPECT_THAT(error_of([&] { SafetensorsFile(folder.path()); }), HasSubstr("regular file"));
  EXPECT_THAT(error_of([&] { SafetensorsFile(folder / "absent.safetensors"); }), HasSubstr("cannot be opened"));
}

TEST(SafetensorsFile, ReadsEveryGolden) {
  int files = 0;
  for (const auto& item :
       std::filesystem::recursive_directory_iterator(std::string(SLUICE_SOURCE_DIR) + "/tests/data/goldens")) {
    if (item.path().extension() != ".safetensors" || item.path().string().find("malformed") != std::string::npos)
      continue;
    const SafetensorsFile file(item.path());
    EXPECT_FALSE(file.entries().empty()) << item.path();
    ++files;
  }
  EXPECT_GE(files, 35);
}

}  // namespace
}  // namespace sluice
