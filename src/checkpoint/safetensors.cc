#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>

#include "base/error.h"
#include "base/json.h"

namespace sluice {
namespace {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeader = 100'000'000;  // the format's own limit

static_assert(std::endian::native == std::endian::little, "tensors are viewed in place");

constexpr std::array<std::pair<std::string_view, DType>, 15> kDTypes{{
    {"F64", DType::f64},
    {"F32", DType::f32},
    {"F16", DType::f16},
    {"BF16", DType::bf16},
    {"F8_E4M3", DType::f8_e4m3},
    {"F8_E5M2", DType::f8_e5m2},
    {"I64", DType::i64},
    {"I32", DType::i32},
    {"I16", DType::i16},
    {"I8", DType::i8},
    {"U64", DType::u64},
    {"U32", DType::u32},
    {"U16", DType::u16},
    {"U8", DType::u8},
    {"BOOL", DType::boolean},
}};

// One tensor as the header describes it, not yet held against the file.
struct Claim {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::uint64_t begin = 0;  // bytes from the start of the data
  std::uint64_t end = 0;
};

class Parser {
 public:
  Parser(std::span<const std::byte> file, std::string_view source) : file_(file), source_(source) {}

  SafetensorsContent parse() {
    const Json header = read_header();
    std::vector<Claim> claims;
    claims.reserve(header.as_object(source_).size());
    for (const auto& [name, value] : header.as_object(source_)) {
      if (name == "__metadata__") {
        read_metadata(value);
      } else {
        claims.push_back(read_claim(name, value));
      }
    }
    std::sort(claims.begin(), claims.end(),
              [](const Claim& a, const Claim& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
    std::uint64_t described = 0;
    for (const Claim& claim : claims) described = std::max(described, claim.end);
    for (const Claim& claim : claims) check_range(claim, described);
    for (const Claim& claim : claims) check_size(claim);
    check_cover(claims);
    for (Claim& claim : claims) add(std::move(claim));
    std::sort(content_.entries.begin(), content_.entries.end(),
              [](const SafetensorsEntry& a, const SafetensorsEntry& b) { return a.name < b.name; });
    return std::move(content_);
  }

 private:
  Json read_header() {
    if (file_.size() < kLengthBytes) {
      fail("{}: {} bytes, too short for the 8-byte header length of a safetensors file; is the download complete?",
           source_, file_.size());
    }
    std::uint64_t length = 0;
    std::memcpy(&length, file_.data(), sizeof length);
    const std::uint64_t left = file_.size() - kLengthBytes;
    if (length == 0)
      fail("{}: the header is empty (header length 0); not a safetensors file, or a damaged one", source_);
    if (length > left) {
      fail(
          "{}: the header length is {} bytes, but the file has only {} bytes after it ({} in all); truncated or "
          "damaged",
          source_, length, left, file_.size());
    }
    if (length > kMaxHeader) {
      fail("{}: the header length is {} bytes; the format allows at most {}", source_, length, kMaxHeader);
    }
    data_start_ = kLengthBytes + length;
    const std::string_view text(reinterpret_cast<const char*>(file_.data()) + kLengthBytes, length);
    Json header = parse_json(text, fmt::format("{}: header", source_));
    if (!header.is_object()) fail("{}: the header must be an object, found {}", source_, header.type_name());
    if (text.front() != '{') fail("{}: the header must begin with '{{'", source_);
    return header;
  }

  void read_metadata(const Json& value) {
    const std::string what = fmt::format("{}: __metadata__", source_);
    for (const auto& [key, text] : value.as_object(what)) {
      content_.metadata.emplace_back(key, text.as_string(fmt::format("{}: \"{}\"", what, key)));
    }
  }

  Claim read_claim(const std::string& name, const Json& value) const {
    if (!value.is_object()) {
      fail("{}: tensor \"{}\": expected an object with dtype, shape and data_offsets, found {}", source_, name,
           value.type_name());
    }
    Claim claim;
    claim.name = name;
    const Json *dtype = nullptr, *shape = nullptr, *offsets = nullptr;
    for (const auto& [key, member] : value.as_object(source_)) {
      if (key == "dtype") {
        dtype = &member;
      } else if (key == "shape") {
        shape = &member;
      } else if (key == "data_offsets") {
        offsets = &member;
      } else {
        fail("{}: tensor \"{}\": unknown key \"{}\"; the format knows dtype, shape and data_offsets", source_, name,
             key);
      }
    }
    if (dtype == nullptr || shape == nullptr || offsets == nullptr) {
      fail("{}: tensor \"{}\": the key \"{}\" is missing", source_, name,
           dtype == nullptr   ? "dtype"
           : shape == nullptr ? "shape"
                              : "data_offsets");
    }
    claim.dtype = read_dtype(name, *dtype);
    claim.shape = read_shape(name, *shape);
    std::tie(claim.begin, claim.end) = read_offsets(name, *offsets);
    return claim;
  }

  DType read_dtype(const std::string& name, const Json& value) const {
    if (value.is_string()) {
      for (const auto& [spelling, dtype] : kDTypes) {
        if (spelling == value.as_string(source_)) return dtype;
      }
    }
    fail(
        "{}: tensor \"{}\": the dtype {} is not known; known are F64 F32 F16 BF16 F8_E4M3 F8_E5M2 I64 I32 I16 I8 U64 "
        "U32 U16 U8 BOOL",
        source_, name, value.dump(-1));
  }

  Shape read_shape(const std::string& name, const Json& value) const {
    if (!value.is_array())
      fail("{}: tensor \"{}\": shape: expected an array, found {}", source_, name, value.type_name());
    Shape shape;
    shape.reserve(value.as_array(source_).size());
    for (const Json& extent : value.as_array(source_)) {
      if (!extent.is_integer() || extent.as_number(source_) < 0) {
        fail("{}: tensor \"{}\": shape {}: expected integers of at least 0", source_, name, value.dump(-1));
      }
      if (extent.as_uint(source_) > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        fail("{}: tensor \"{}\": shape {}: does not fit 63 bits", source_, name, value.dump(-1));
      }
      shape.push_back(extent.as_int(source_));
    }
    return shape;
  }

  std::pair<std::uint64_t, std::uint64_t> read_offsets(const std::string& name, const Json& value) const {
    const bool pair = value.is_array() && value.as_array(source_).size() == 2;
    const auto is_offset = [&](std::size_t i) {
      const Json& offset = value.as_array(source_)[i];
      return offset.is_integer() && offset.as_number(source_) >= 0;
    };
    if (!pair || !is_offset(0) || !is_offset(1)) {
      fail("{}: tensor \"{}\": data_offsets: expected [begin, end] in bytes, found {}", source_, name, value.dump(-1));
    }
    return {value.as_array(source_)[0].as_uint(source_), value.as_array(source_)[1].as_uint(source_)};
  }

  std::uint64_t data_bytes() const { return file_.size() - data_start_; }

  void check_range(const Claim& claim, std::uint64_t described) const {
    if (claim.begin > claim.end) {
      fail("{}: tensor \"{}\": data_offsets [{}, {}] end before they begin", source_, claim.name, claim.begin,
           claim.end);
    }
    if (claim.end > data_bytes()) {
      fail(
          "{}: tensor \"{}\" ends at byte {} of the data, but of the {} bytes that the header describes the file has "
          "{} ({} in all); truncated or damaged",
          source_, claim.name, claim.end, described, data_bytes(), file_.size());
    }
  }

  void check_size(const Claim& claim) const {
    const auto bytes = byte_count(claim.shape, claim.dtype);
    if (!bytes) {
      fail("{}: tensor \"{}\": the shape {} of {} overflows 63 bits", source_, claim.name, to_string(claim.shape),
           safetensors_dtype(claim.dtype));
    }
    if (*bytes != claim.end - claim.begin) {
      fail("{}: tensor \"{}\": the shape {} of {} takes {} bytes, but data_offsets [{}, {}] hold {}", source_,
           claim.name, to_string(claim.shape), safetensors_dtype(claim.dtype), *bytes, claim.begin, claim.end,
           claim.end - claim.begin);
    }
  }

  // The claims, in the order of their ranges, must follow each other without gap from 0 to the end of the file.
  void check_cover(const std::vector<Claim>& claims) const {
    std::uint64_t covered = 0;
    const Claim* last = nullptr;
    for (const Claim& claim : claims) {
      if (claim.begin < covered) {
        fail("{}: tensors \"{}\" [{}, {}] and \"{}\" [{}, {}] overlap", source_, last->name, last->begin, last->end,
             claim.name, claim.begin, claim.end);
      }
      if (claim.begin > covered) {
        fail("{}: the bytes [{}, {}] before tensor \"{}\" belong to no tensor; the format allows no holes", source_,
             covered, claim.begin, claim.name);
      }
      covered = claim.end;
      if (claim.end > claim.begin || last == nullptr) last = &claim;
    }
    if (covered != data_bytes()) {
      fail("{}: the bytes [{}, {}] after the last tensor belong to no tensor; the format allows no holes", source_,
           covered, data_bytes());
    }
  }

  void add(Claim claim) {
    SafetensorsEntry entry{
        .name = std::move(claim.name), .view = {claim.dtype, std::move(claim.shape), {}}, .offset = 0};
    entry.offset = data_start_ + claim.begin;
    entry.view.bytes = file_.subspan(entry.offset, claim.end - claim.begin);
    content_.entries.push_back(std::move(entry));
  }

  std::span<const std::byte> file_;
  std::string_view source_;
  std::uint64_t data_start_ = 0;
  SafetensorsContent content_;
};

}  // namespace

SafetensorsContent parse_safetensors(std::span<const std::byte> file, std::string_view source) {
  return Parser(file, source).parse();
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : mapping_(path), content_(parse_safetensors(mapping_.bytes(), path.string())) {}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const noexcept {
  const auto& entries = content_.entries;
  const auto it =
      std::lower_bound(entries.begin(), entries.end(), name,
                       [](const SafetensorsEntry& entry, std::string_view key) { return entry.name < key; });
  return it != entries.end() && it->name == name ? &*it : nullptr;
}

const SafetensorsEntry& SafetensorsFile::at(std::string_view name) const {
  const SafetensorsEntry* entry = find(name);
  if (entry == nullptr) fail("{}: there is no tensor \"{}\"", path().string(), name);
  return *entry;
}

std::string_view safetensors_dtype(DType dtype) noexcept {
  for (const auto& [spelling, known] : kDTypes) {
    if (known == dtype) return spelling;
  }
  return {};
}

}  // namespace sluice
