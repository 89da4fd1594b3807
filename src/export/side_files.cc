#include "export/side_files.h"

#include <algorithm>
#include <map>

#include "base/error.h"

namespace sluice {
namespace fs = std::filesystem;
namespace {

constexpr double kMostSearchValue = 1000;  // beyond any use
constexpr std::int64_t kMostTopK = std::int64_t{1} << 31;

constexpr const char* kCarried[] = {
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "LICENSE",
    "LICENSE.txt",
    "LICENSE.md",
    "NOTICE",
    "README.md",
};

// A carried file that is there must be one: a link whose target is gone is an interrupted download.
bool is_carried(const fs::path& file) {
  std::error_code ignored;
  const fs::file_status status = fs::status(file, ignored);
  if (fs::is_regular_file(status)) return true;
  if (fs::exists(status)) {
    fail("{}: expected a file, found {}", file.string(), fs::is_directory(status) ? "a folder" : "something else");
  }
  if (fs::is_symlink(fs::symlink_status(file, ignored))) {
    fail("{}: a symlink to {}, which does not exist; is the download complete?", file.string(),
         fs::read_symlink(file, ignored).string());
  }
  return false;
}

std::optional<Json> read_optional(const fs::path& file) {
  if (!is_carried(file)) return std::nullopt;
  Json json = read_json(file);
  json.as_object(file.string());
  return json;
}

// content -> id of the tokens that tokenizer.json adds beside its model, and of the model's own vocabulary on demand.
class TokenIds {
 public:
  TokenIds(const fs::path& checkpoint) : file_((checkpoint / "tokenizer.json").string()), json_(read_optional(file_)) {
    if (!json_) return;
    const Json* added = json_->find("added_tokens");
    if (added == nullptr || added->is_null()) return;
    for (const Json& token : added->as_array(file_ + ": added_tokens")) {
      added_[token.at("content", file_ + ": added_tokens").as_string(file_ + ": added_tokens: content")] =
          token.at("id", file_ + ": added_tokens").as_int(file_ + ": added_tokens: id");
    }
  }

  std::optional<std::int64_t> find(const std::string& content) const {
    if (const auto found = added_.find(content); found != added_.end()) return found->second;
    const Json* model = json_ ? json_->find("model") : nullptr;
    const Json* vocab = model != nullptr ? model->find("vocab") : nullptr;
    const Json* id = vocab != nullptr ? vocab->find(content) : nullptr;
    if (id == nullptr || !id->is_integer()) return std::nullopt;
    return id->as_int(file_ + ": model: vocab");
  }

 private:
  std::string file_;
  std::optional<Json> json_;
  std::map<std::string, std::int64_t> added_;
};

// "eos_token": "<|im_end|>" or {"content": "<|im_end|>", ...} or null.
std::optional<std::string> token_text(const Json* tokenizer_config, const char* key) {
  const Json* value = tokenizer_config != nullptr ? tokenizer_config->find(key) : nullptr;
  if (value != nullptr && value->is_object()) value = value->find("content");
  if (value == nullptr || value->is_null()) return std::nullopt;
  return value->as_string(std::string("tokenizer_config.json: ") + key);
}

// An integer or a list of integers.
std::vector<std::int64_t> ids_of(const Json* value, const std::string& what) {
  if (value == nullptr || value->is_null()) return {};
  if (value->is_integer()) return {value->as_int(what)};
  std::vector<std::int64_t> ids;
  for (const Json& id : value->as_array(what)) ids.push_back(id.as_int(what));
  return ids;
}

void add_once(std::vector<std::int64_t>& ids, const std::vector<std::int64_t>& more) {
  for (const std::int64_t id : more) {
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
}

SearchDefaults search_of(const Json* generation) {
  SearchDefaults search;
  if (generation == nullptr) return search;
  const std::string file = "generation_config.json: ";
  const auto given = [&](const char* key) {
    const Json* value = generation->find(key);
    return value != nullptr && !value->is_null() ? value : nullptr;
  };
  const auto number = [&](const char* key, double& to, double most) {
    const Json* v = given(key);
    if (v == nullptr) return;
    to = v->as_number(file + key);
    if (!(to >= 0 && to <= most)) fail("{}{} is {}; expected a number from 0 to {}", file, key, to, most);
  };
  if (const Json* v = given("do_sample")) search.do_sample = v->as_bool(file + "do_sample");
  number("temperature", search.temperature, kMostSearchValue);
  if (const Json* v = given("top_k")) search.top_k = v->as_int(file + "top_k");
  if (search.top_k < 0 || search.top_k > kMostTopK)
    fail("{}top_k is {}; expected an integer from 0 to {}", file, search.top_k, kMostTopK);
  number("top_p", search.top_p, 1);
  number("repetition_penalty", search.repetition_penalty, kMostSearchValue);
  if (search.repetition_penalty == 0) fail("{}repetition_penalty is 0; expected a number above 0", file);
  return search;
}

void check_ids(const SideFiles& files, std::int64_t vocab) {
  std::vector<std::int64_t> ids = files.eos_ids;
  if (files.bos_id) ids.push_back(*files.bos_id);
  if (files.pad_id) ids.push_back(*files.pad_id);
  for (const std::int64_t id : ids) {
    if (id < 0 || id >= vocab) {
      fail(
          "token id {} of eos, bos or pad (config.json, generation_config.json or the tokenizer) is outside the "
          "vocabulary "
          "of {}; correct the file that names it",
          id, vocab);
    }
  }
}

}  // namespace

SideFiles read_side_files(const fs::path& checkpoint, const HybridConfig& config) {
  SideFiles out;
  for (const char* name : kCarried) {
    if (is_carried(checkpoint / name)) out.names.emplace_back(name);
  }
  const auto tokenizer_config = read_optional(checkpoint / "tokenizer_config.json");
  const auto generation = read_optional(checkpoint / "generation_config.json");
  const Json* tokenizer = tokenizer_config ? &*tokenizer_config : nullptr;
  const Json* defaults = generation ? &*generation : nullptr;
  const TokenIds tokens(checkpoint);
  const auto token_id = [&](const char* key) -> std::optional<std::int64_t> {
    const auto text = token_text(tokenizer, key);
    return text ? tokens.find(*text) : std::nullopt;
  };
  const auto first_of = [&](const char* key) -> std::optional<std::int64_t> {
    const auto ids =
        ids_of(defaults != nullptr ? defaults->find(key) : nullptr, std::string("generation_config.json: ") + key);
    return ids.empty() ? std::nullopt : std::optional(ids.front());
  };

  if (const auto id = token_id("eos_token")) out.eos_ids.push_back(*id);
  add_once(out.eos_ids, ids_of(defaults != nullptr ? defaults->find("eos_token_id") : nullptr,
                               "generation_config.json: eos_token_id"));
  add_once(out.eos_ids, config.eos_ids);
  out.bos_id = first_of("bos_token_id");
  if (!out.bos_id) out.bos_id = config.bos_id;
  out.pad_id = first_of("pad_token_id");
  if (!out.pad_id) out.pad_id = config.pad_id;
  if (!out.pad_id) out.pad_id = token_id("pad_token");
  if (!out.pad_id && !out.eos_ids.empty()) out.pad_id = out.eos_ids.front();
  if (out.eos_ids.empty()) {
    out.notices.push_back(
        "no end-of-sequence id in config.json, generation_config.json or the tokenizer: generation stops at its length "
        "alone");
  }
  if (std::find(out.names.begin(), out.names.end(), "tokenizer.json") == out.names.end()) {
    out.notices.push_back("no tokenizer.json in the checkpoint: the package takes and gives token ids alone");
  }
  out.markers = {tokens.find("<tool_call>"), tokens.find("</tool_call>"), tokens.find("<think>"),
                 tokens.find("</think>")};
  out.search = search_of(defaults);
  check_ids(out, config.vocab);
  return out;
}

}  // namespace sluice
