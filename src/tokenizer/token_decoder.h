// Token ids -> text, by the vocabulary of a byte-level BPE tokenizer.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace sluice {

class TokenDecoder {
 public:
  // Reads the vocabulary and the added tokens. Throws Error naming file and key, also for a decoder other than
  // ByteLevel.
  explicit TokenDecoder(const std::filesystem::path& tokenizer_json);

  // UTF-8 text; bytes that are no UTF-8 become U+FFFD, one for each maximal broken part (Unicode 15, section 3.9). Ids
  // outside the vocabulary give nothing.
  std::string decode(std::span<const std::int64_t> ids, bool skip_special) const;

 private:
  struct Token {
    std::string bytes;
    bool special = false;
  };
  std::vector<Token> tokens_;
};

// Replaces what is not UTF-8.
std::string to_valid_utf8(std::string_view bytes);

}  // namespace sluice
