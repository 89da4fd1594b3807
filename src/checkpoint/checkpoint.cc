#include "checkpoint/checkpoint.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";
constexpr std::string_view kLookedFor = "model.safetensors, model.safetensors.index.json";
constexpr std::size_t kNamesShown = 4;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// A symlink whose target is gone, as an interrupted download leaves it in a hub cache.
bool dangles(const fs::path& path) {
  std::error_code ignored;
  return fs::is_symlink(fs::symlink_status(path, ignored)) && !is_there(path);
}

[[noreturn]] void fail_dangling(const fs::path& path) {
  std::error_code ignored;
  fail("{}: a symlink to {}, which does not exist; is the download complete?", path.string(),
       fs::read_symlink(path, ignored).string());
}

std::string some_of(const std::vector<std::string>& names) {
  const std::size_t shown = std::min(names.size(), kNamesShown);
  std::string text =
      fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  if (shown < names.size()) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

// Names in a folder that end in `suffix`, sorted.
std::vector<std::string> names_ending(const fs::path& directory, std::string_view suffix) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string();
    if (name.ends_with(suffix)) names.push_back(std::move(name));
  }
  if (error) fail("{}: the folder cannot be read: {}", directory.string(), error.message());
  std::sort(names.begin(), names.end());
  return names;
}

[[noreturn]] void fail_absent_path(const fs::path& path) {
  const std::string text = path.string();
  if (text.empty()) fail("the checkpoint is an empty path; expected a folder");
  if (!path.is_absolute() && std::count(text.begin(), text.end(), '/') == 1 && !text.starts_with("./")) {
    fail("{}: no such file or folder; if this is a name on a model hub, download the model and give its folder", text);
  }
  fail("{}: no such file or folder", text);
}

// Says what the folder holds instead of safetensors.
[[noreturn]] void fail_without_weights(const fs::path& directory) {
  const std::string where = directory.string();
  if (const auto shards = names_ending(directory, ".safetensors"); !shards.empty()) {
    if (shards.size() == 1)
      fail("{}: none of {} is there; to read {}, give the path of that file", where, kLookedFor, shards[0]);
    fail(
        "{}: none of {} is there, but {}; without the index nobody knows whether these shards are all: download it too",
        where, kLookedFor, some_of(shards));
  }
  for (const std::string_view suffix : {".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"}) {
    if (const auto others = names_ending(directory, suffix); !others.empty()) {
      fail("{}: none of {} is there; {} is not a format Sluice reads: convert the weights to safetensors", where,
           kLookedFor, some_of(others));
    }
  }
  fail("{}: no weights: none of {} is there", where, kLookedFor);
}

void refuse_adapter(const fs::path& directory) {
  for (const std::string_view name : {"adapter_config.json", "adapter_model.safetensors"}) {
    if (is_there(directory / name)) {
      fail(
          "{}: a LoRA adapter, not a whole model; merge it into its base model first, or move the file away if it is a "
          "leftover",
          (directory / name).string());
    }
  }
}

using WeightMap = std::unordered_map<std::string_view, std::string_view>;  // tensor -> shard

// Reads weight_map; the views live as long as `index`.
WeightMap read_weight_map(const Json& index, const std::string& source) {
  const std::string what = source + ": weight_map";
  if (!index.is_object()) fail("{}: expected an object with \"weight_map\", found {}", source, index.type_name());
  const Json::Object& entries = index.at("weight_map", source).as_object(what);
  if (entries.empty()) fail("{}: names no tensor", what);
  WeightMap map;
  map.reserve(entries.size());
  for (const auto& [tensor, shard] : entries) {
    if (!shard.is_string()) fail("{}: \"{}\": expected a file name, found {}", what, tensor, shard.type_name());
    map.emplace(tensor, shard.as_string(what));
  }
  return map;
}

// The shards a map names, sorted; each must lie inside the folder and exist.
std::set<std::string_view> check_shards(const WeightMap& map, const fs::path& directory, const std::string& source) {
  std::set<std::string_view> shards;
  for (const auto& [tensor, shard] : map) shards.insert(shard);
  std::vector<std::string> absent;
  for (const std::string_view shard : shards) {
    const fs::path relative = fs::path(shard).lexically_normal();
    if (shard.empty() || shard.find('\0') != std::string_view::npos || relative.is_absolute() ||
        *relative.begin() == "..") {
      fail("{}: weight_map names the shard \"{}\", which lies outside the folder", source, shard);
    }
    if (!shard.ends_with(".safetensors")) {
      fail("{}: weight_map names the shard \"{}\", which is no .safetensors file", source, shard);
    }
    if (dangles(directory / shard)) fail_dangling(directory / shard);
    if (!is_there(directory / shard)) absent.emplace_back(shard);
  }
  if (!absent.empty()) {
    fail("{}: {} of the {} shards it names are not in the folder: {}; complete the download, or remove a stale index",
         source, absent.size(), shards.size(), some_of(absent));
  }
  return shards;
}

// Every tensor of the map must lie in its shard, and every tensor of a shard must be mapped to it.
void check_mapping(const WeightMap& map, const std::vector<SafetensorsFile>& shards,
                   const std::vector<CheckpointFile>& files, const std::string& source) {
  std::size_t found = 0;
  std::unordered_map<std::string_view, const SafetensorsFile*> by_name;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    by_name.emplace(files[i].name, &shards[i]);
    for (const SafetensorsEntry& entry : shards[i].entries()) {
      const auto it = map.find(entry.name);
      if (it == map.end()) {
        fail("{}: the tensor \"{}\" is in {} but not in weight_map; the index and the shards do not belong together",
             source, entry.name, files[i].name);
      }
      if (it->second == files[i].name) ++found;
    }
  }
  if (found == map.size()) return;
  std::string_view missing;  // the first by name, so that the message does not depend on hashing
  for (const auto& [tensor, shard] : map) {
    if (by_name.at(shard)->find(tensor) == nullptr && (missing.empty() || tensor < missing)) missing = tensor;
  }
  fail("{}: weight_map maps the tensor \"{}\" to {}, which does not hold it", source, missing, map.at(missing));
}

}  // namespace

Checkpoint::Checkpoint(const fs::path& path) {
  if (dangles(path)) fail_dangling(path);
  if (!is_there(path)) fail_absent_path(path);
  if (fs::is_directory(path)) {
    directory_ = path;
    refuse_adapter(directory_);
    if (dangles(path / kIndex)) fail_dangling(path / kIndex);
    if (dangles(path / kSingle)) fail_dangling(path / kSingle);
    if (is_there(path / kIndex)) {
      open_sharded(path / kIndex);
    } else if (is_there(path / kSingle)) {
      open_single(path / kSingle);
    } else {
      fail_without_weights(path);
    }
  } else {
    directory_ = path.has_parent_path() ? path.parent_path() : fs::path(".");
    const std::string name = path.filename().string();
    if (name.ends_with(".safetensors")) {
      refuse_adapter(directory_);
      open_single(path);
    } else if (name.ends_with(".safetensors.index.json")) {
      refuse_adapter(directory_);
      open_sharded(path);
    } else {
      fail("{}: expected a checkpoint folder or a .safetensors file", path.string());
    }
  }
  collect();
}

void Checkpoint::open_single(const fs::path& file) {
  shards_.emplace_back(file);
  files_.push_back({file, file.filename().string(), shards_.back().mapping().bytes().size()});
}

void Checkpoint::open_sharded(const fs::path& index_file) {
  const Json index = read_json(index_file);
  const std::string source = index_file.string();
  const WeightMap map = read_weight_map(index, source);
  for (const std::string_view shard : check_shards(map, directory_, source)) {
    shards_.emplace_back(directory_ / shard);
    files_.push_back({directory_ / shard, std::string(shard), shards_.back().mapping().bytes().size()});
  }
  std::error_code ignored;
  index_ = {index_file, index_file.filename().string(), fs::file_size(index_file, ignored)};
  check_mapping(map, shards_, files_, source);
}

void Checkpoint::collect() {
  std::size_t count = 0;
  for (const SafetensorsFile& shard : shards_) count += shard.entries().size();
  tensors_.reserve(count);
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    for (const SafetensorsEntry& entry : shards_[i].entries()) {
      tensors_.push_back({entry.name, &entry.view, static_cast<std::int32_t>(i), entry.offset});
    }
  }
  std::sort(tensors_.begin(), tensors_.end(),
            [](const CheckpointTensor& a, const CheckpointTensor& b) { return a.name < b.name; });
  for (std::size_t i = 1; i < tensors_.size(); ++i) {
    if (tensors_[i].name == tensors_[i - 1].name) {
      fail("{}: the tensor \"{}\" is in two shards, {} and {}", directory_.string(), tensors_[i].name,
           files_[static_cast<std::size_t>(tensors_[i - 1].file)].name,
           files_[static_cast<std::size_t>(tensors_[i].file)].name);
    }
  }
  std::vector<std::string> strays;
  for (std::string& name : names_ending(directory_, ".safetensors")) {
    const bool read =
        std::any_of(files_.begin(), files_.end(), [&](const CheckpointFile& file) { return file.name == name; });
    if (!read) strays.push_back(std::move(name));
  }
  if (!strays.empty()) {
    notices_.push_back(fmt::format("not read, because {}: {}",
                                   index_.name.empty() ? fmt::format("{} is the whole checkpoint", files_.front().name)
                                                       : fmt::format("{} does not name them", index_.name),
                                   some_of(strays)));
  }
}

const CheckpointTensor* Checkpoint::find(std::string_view name) const noexcept {
  const auto it =
      std::lower_bound(tensors_.begin(), tensors_.end(), name,
                       [](const CheckpointTensor& tensor, std::string_view key) { return tensor.name < key; });
  return it != tensors_.end() && it->name == name ? &*it : nullptr;
}

const MappedFile& Checkpoint::mapping_of(std::span<const std::byte> bytes) const {
  const std::less_equal<const std::byte*> before;
  for (const SafetensorsFile& shard : shards_) {
    const auto whole = shard.mapping().bytes();
    if (before(whole.data(), bytes.data()) && before(bytes.data() + bytes.size(), whole.data() + whole.size())) {
      return shard.mapping();
    }
  }
  SLUICE_CHECK(false && "bytes of another checkpoint");
  return shards_.front().mapping();
}

std::uint64_t Checkpoint::tensor_bytes() const noexcept {
  std::uint64_t total = 0;
  for (const CheckpointTensor& tensor : tensors_) total += tensor.view->bytes.size();
  return total;
}

}  // namespace sluice
