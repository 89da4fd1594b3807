#include "tokenizer/token_decoder.h"

#include <array>
#include <optional>

#include "base/error.h"
#include "base/json.h"

namespace sluice {
namespace {

constexpr std::size_t kMaxTokens = std::size_t{1} << 24;

// Byte-level BPE writes a byte as a printable character: printable Latin-1 bytes stand for themselves, the other 68, in
// order, for U+0100 and on. This is the inverse: character -> byte, -1 for characters that stand for none.
std::array<int, 0x144> byte_of_character() {
  std::array<int, 0x144> table{};
  table.fill(-1);
  std::size_t next = 0x100;
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    table[printable ? byte : next++] = static_cast<int>(byte);
  }
  return table;
}

struct Sequence {
  std::size_t length = 1;  // bytes read
  std::optional<char32_t> character;
};

// One character, or the maximal broken part, at `at`.
Sequence read_utf8(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(at);
  if (lead < 0x80) return {1, lead};
  const std::size_t length = lead >= 0xc2 && lead < 0xe0   ? 2
                             : lead >= 0xe0 && lead < 0xf0 ? 3
                             : lead >= 0xf0 && lead < 0xf5 ? 4
                                                           : 0;
  if (length == 0) return {1, std::nullopt};
  // The second byte's range excludes overlong forms, surrogates and values beyond U+10FFFF.
  unsigned low = 0x80, high = 0xbf;
  if (lead == 0xe0) low = 0xa0;
  if (lead == 0xed) high = 0x9f;
  if (lead == 0xf0) low = 0x90;
  if (lead == 0xf4) high = 0x8f;
  char32_t value = lead & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if (at + i >= text.size() || byte(at + i) < low || byte(at + i) > high) return {i, std::nullopt};
    value = value << 6 | (byte(at + i) & 0x3fu);
    low = 0x80, high = 0xbf;
  }
  return {length, value};
}

// The bytes a vocabulary entry stands for; characters outside the byte alphabet stand for their own UTF-8.
std::string token_bytes(const std::string& written, const std::array<int, 0x144>& bytes) {
  std::string out;
  for (std::size_t at = 0; at < written.size();) {
    const Sequence s = read_utf8(written, at);
    const int byte = s.character && *s.character < bytes.size() ? bytes[*s.character] : -1;
    if (byte >= 0) {
      out += static_cast<char>(byte);
    } else {
      out += written.substr(at, s.length);
    }
    at += s.length;
  }
  return out;
}

}  // namespace

std::string to_valid_utf8(std::string_view bytes) {
  std::string out;
  for (std::size_t at = 0; at < bytes.size();) {
    const Sequence s = read_utf8(bytes, at);
    out += s.character ? bytes.substr(at, s.length) : std::string_view("\xef\xbf\xbd");
    at += s.length;
  }
  return out;
}

TokenDecoder::TokenDecoder(const std::filesystem::path& tokenizer_json) {
  const std::string file = tokenizer_json.string();
  const Json json = read_json(tokenizer_json);
  if (const Json* decoder = json.find("decoder"); decoder != nullptr && decoder->is_object()) {
    const std::string& type = decoder->at("type", file + ": decoder").as_string(file + ": decoder: type");
    if (type != "ByteLevel") fail("{}: decoder: type \"{}\" is not supported; expected ByteLevel", file, type);
  }
  const auto put = [&](std::int64_t id, Token token) {
    if (id < 0 || static_cast<std::size_t>(id) >= kMaxTokens) fail("{}: token id {} is out of range", file, id);
    const auto index = static_cast<std::size_t>(id);
    if (tokens_.size() <= index) tokens_.resize(index + 1);
    tokens_[index] = std::move(token);
  };
  const auto bytes = byte_of_character();
  for (const auto& [written, id] :
       json.at("model", file).at("vocab", file + ": model").as_object(file + ": model: vocab")) {
    put(id.as_int(file + ": model: vocab"), {token_bytes(written, bytes), false});
  }
  if (const Json* added = json.find("added_tokens"); added != nullptr && !added->is_null()) {
    const std::string what = file + ": added_tokens";
    for (const Json& token : added->as_array(what)) {
      const Json* special = token.find("special");
      put(token.at("id", what).as_int(what + ": id"), {token.at("content", what).as_string(what + ": content"),
                                                       special != nullptr && special->as_bool(what + ": special")});
    }
  }
}

std::string TokenDecoder::decode(std::span<const std::int64_t> ids, bool skip_special) const {
  std::string bytes;
  for (const std::int64_t id : ids) {
    if (id < 0 || static_cast<std::size_t>(id) >= tokens_.size()) continue;
    const Token& token = tokens_[static_cast<std::size_t>(id)];
    if (!(skip_special && token.special)) bytes += token.bytes;
  }
  return to_valid_utf8(bytes);
}

}  // namespace sluice
