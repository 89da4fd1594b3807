// A Hugging Face checkpoint folder as one name -> tensor view map over mapped safetensors files. Nothing is copied.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "base/tensor_view.h"
#include "checkpoint/safetensors.h"

namespace sluice {

struct CheckpointTensor {
  std::string_view name;     // lives as long as the checkpoint
  const TensorView* view;    // likewise; bytes possibly unaligned
  std::int32_t file = 0;     // index into Checkpoint::files()
  std::uint64_t offset = 0;  // bytes from the start of that file
};

// A file the checkpoint consists of, index included.
struct CheckpointFile {
  std::filesystem::path path;  // as opened: folder / name, symlinks kept
  std::string name;            // relative to the folder
  std::uint64_t bytes = 0;
};

// Opens a folder with model.safetensors, or with model.safetensors.index.json and its shards (the index decides when
// both are there), or one .safetensors file. Symlinked files (hub caches) are followed. Reads headers alone:
// milliseconds. Movable; names, views and files stay valid when it is moved. Throws Error, before anything else is
// read, for: no weight file (naming what was looked for, and pickled weights or GGUF by name), a broken file, an index
// that is no index, names a shard that is absent or lies outside the folder, maps a tensor to a shard that lacks it, or
// leaves out a tensor that a shard holds, and for a LoRA adapter.
class Checkpoint {
 public:
  explicit Checkpoint(const std::filesystem::path& path);

  const std::filesystem::path& directory() const noexcept { return directory_; }
  std::span<const CheckpointTensor> tensors() const noexcept { return tensors_; }  // sorted by name
  const CheckpointTensor* find(std::string_view name) const noexcept;              // null when absent
  // Weight files in the order of their names; files()[i] is what CheckpointTensor::file == i means.
  std::span<const CheckpointFile> files() const noexcept { return files_; }
  const MappedFile& mapping(std::int32_t file) const { return shards_[static_cast<std::size_t>(file)].mapping(); }
  // The file that `bytes`, a part of some tensor's bytes, lies in: for reflinks and for releasing pages.
  const MappedFile& mapping_of(std::span<const std::byte> bytes) const;
  // The index, when there is one.
  const CheckpointFile* index() const noexcept { return index_.name.empty() ? nullptr : &index_; }
  std::uint64_t tensor_bytes() const noexcept;
  // What a user should know: files that look like weights and are not read.
  const std::vector<std::string>& notices() const noexcept { return notices_; }

 private:
  void open_single(const std::filesystem::path& file);
  void open_sharded(const std::filesystem::path& index_file);
  void collect();

  std::filesystem::path directory_;
  std::vector<SafetensorsFile> shards_;
  std::vector<CheckpointFile> files_;
  CheckpointFile index_;
  std::vector<CheckpointTensor> tensors_;
  std::vector<std::string> notices_;
};

}  // namespace sluice
