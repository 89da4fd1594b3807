// The bytes of an initializer, made a buffer at a time: read from the shards, converted, handed to the writer.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/executor.h"
#include "export/file_writer.h"
#include "kernels/cpu/convert.h"
#include "onnx/graph.h"
#include "weights/weight_source.h"

namespace sluice {

// Called after each buffer with the bytes written since the last call; may throw to stop.
using OnBytes = std::function<void(std::uint64_t)>;

struct StreamedWeight {
  ConvertCounts counts;
  std::string source_xxh3;  // of the source bytes in the order they were used
};

// Where the bytes of a weight lie in one shard exactly as `dtype` stores them; file is null when they do not.
struct StoredBytes {
  const MappedFile* file = nullptr;
  std::uint64_t offset = 0;  // bytes
  std::uint64_t bytes = 0;
};
StoredBytes stored_bytes(const WeightRecipe& recipe, DType dtype, const Checkpoint& checkpoint,
                         const WeightSource& weights);

// Weights of at least this many bytes that are stored as they are share blocks with the shard where the file system
// can: their place in the data file is congruent to their place in the shard, modulo FileWriter::kCloneBlock.
inline constexpr std::uint64_t kCloneBytes = std::uint64_t{1} << 20;

// Reads shards with pread, so that a shard that shrinks meanwhile is an Error and not a signal. Keeps two buffers of
// FileWriter::kBufferBytes whatever the size of the weight.
class WeightStream {
 public:
  WeightStream(const Checkpoint& checkpoint, const WeightSource& weights, Executor& executor);

  // Appends the initializer's bytes to `writer`.
  StreamedWeight write(const WeightRecipe& recipe, DType dtype, FileWriter& writer, const OnBytes& on_bytes);

 private:
  struct Run;
  struct Job;
  struct Output;
  std::vector<Run> runs_of(const WeightRecipe& recipe) const;
  void fill_block(const Job& job, std::int64_t block) noexcept;
  void write_elements(Output& output, std::uint64_t first, std::uint64_t count);
  bool clone_bytes(Output& output, std::uint64_t source_offset, std::uint64_t bytes);

  const Checkpoint& checkpoint_;
  const WeightSource& weights_;
  Executor& executor_;
  std::vector<std::byte> scratch_;  // source bytes of one buffer, a fixed slot a block
};

// Appends a computed table.
void write_table(const TableRecipe& table, std::uint64_t bytes, std::uint64_t row_bytes, FileWriter& writer,
                 const OnBytes& on_bytes);

}  // namespace sluice
