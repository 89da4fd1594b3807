#include "export/weight_stream.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "base/error.h"
#include "kernels/cpu/level.h"

namespace sluice {
namespace {

constexpr std::uint64_t kBlockElements = 1u << 16;  // one work item: 128 to 256 KiB, within a core's L2

ConvertStep step_of(Elementwise elementwise, bool negate_exp) {
  if (negate_exp) return ConvertStep::neg_exp;
  return elementwise == Elementwise::plus_one ? ConvertStep::plus_one : ConvertStep::none;
}

}  // namespace

// Consecutive elements of the initializer that lie together in one shard.
struct WeightStream::Run {
  std::uint64_t first = 0;  // element of the initializer
  std::uint64_t count = 0;
  DType dtype = DType::bf16;
  ConvertStep step = ConvertStep::none;
  const MappedFile* file = nullptr;
  std::uint64_t offset = 0;  // bytes from the start of the file
};

// One buffer's worth: elements [first, first + count) into `out`.
struct WeightStream::Job {
  const std::vector<Run>* runs = nullptr;
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  DType dtype = DType::f32;
  std::byte* out = nullptr;
  Level level = Level::scalar;
  std::vector<ConvertCounts>* counts = nullptr;        // a slot a block
  std::vector<std::uint64_t>* source_bytes = nullptr;  // likewise: bytes used of the block's scratch slot
  std::mutex* mutex = nullptr;
  std::string* failure = nullptr;
};

WeightStream::WeightStream(const Checkpoint& checkpoint, const WeightSource& weights, Executor& executor)
    : checkpoint_(checkpoint), weights_(weights), executor_(executor) {}

namespace {

struct PieceCursor {
  const CanonicalWeight& weight;
  std::vector<std::uint64_t> starts;  // first element of each piece, and the end

  explicit PieceCursor(const CanonicalWeight& w) : weight(w) {
    std::uint64_t start = 0;
    for (const WeightPiece& piece : w.pieces) {
      starts.push_back(start);
      start += piece.elements();
    }
    starts.push_back(start);
  }

  // Calls visit(piece, first element within the piece, count) for elements [first, first + count).
  template <typename Visit>
  void visit(std::uint64_t first, std::uint64_t count, const Visit& visitor) const {
    auto index = static_cast<std::size_t>(std::upper_bound(starts.begin(), starts.end(), first) - starts.begin()) - 1;
    while (count > 0) {
      const std::uint64_t take = std::min(count, starts[index + 1] - first);
      visitor(weight.pieces[index], first - starts[index], take);
      first += take;
      count -= take;
      ++index;
    }
  }
};

// Row of [gate rows; up rows] that interleaved row `row` of an expert comes from.
std::uint64_t interleaved_row(std::uint64_t row, std::uint64_t half) { return row / 2 + (row % 2) * half; }

}  // namespace

std::vector<WeightStream::Run> WeightStream::runs_of(const WeightRecipe& recipe) const {
  bool negate_exp = false, interleave = false;
  for (const Transform transform : recipe.transforms) {
    negate_exp = negate_exp || transform == Transform::neg_exp;
    interleave = interleave || transform == Transform::interleave_gate_up;
  }
  std::vector<Run> runs;
  std::uint64_t at = 0;
  for (const std::string& name : recipe.weights) {
    const CanonicalWeight& weight = weights_.at(name);
    const PieceCursor cursor(weight);
    const auto add = [&](const WeightPiece& piece, std::uint64_t first, std::uint64_t count) {
      const MappedFile& file = checkpoint_.mapping_of(piece.bytes);
      const auto base = static_cast<std::uint64_t>(piece.bytes.data() - file.bytes().data());
      runs.push_back({at, count, piece.dtype, step_of(weight.elementwise, negate_exp), &file,
                      base + first * dtype_bytes(piece.dtype)});
      at += count;
    };
    if (!interleave) {
      cursor.visit(0, cursor.starts.back(), add);
      continue;
    }
    const auto experts = static_cast<std::uint64_t>(weight.shape.at(0)),
               rows = static_cast<std::uint64_t>(weight.shape.at(1));
    const auto cols = static_cast<std::uint64_t>(weight.shape.at(2));
    for (std::uint64_t expert = 0; expert < experts; ++expert) {
      for (std::uint64_t row = 0; row < rows; ++row) {
        cursor.visit((expert * rows + interleaved_row(row, rows / 2)) * cols, cols, add);
      }
    }
  }
  return runs;
}

namespace {

// An empty string when all bytes came, else the reason.
std::string read_exactly(const MappedFile& file, std::uint64_t offset, std::byte* out, std::uint64_t bytes) {
  while (bytes > 0) {
    const ssize_t count = ::pread(file.descriptor(), out, bytes, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0)
      return fmt::format("{}: cannot be read at byte {}: {}", file.path().string(), offset, std::strerror(errno));
    if (count == 0) {
      return fmt::format("{}: ends at byte {}, {} bytes early; it changed while being exported, run the export again",
                         file.path().string(), offset, bytes);
    }
    out += count;
    offset += static_cast<std::uint64_t>(count);
    bytes -= static_cast<std::uint64_t>(count);
  }
  return {};
}

}  // namespace

void WeightStream::fill_block(const Job& job, std::int64_t block) noexcept {
  const auto slot = static_cast<std::size_t>(block);
  std::uint64_t element = static_cast<std::uint64_t>(block) * kBlockElements;  // of the job
  const std::uint64_t end = std::min(job.count, element + kBlockElements);
  std::byte* source = scratch_.data() + slot * kBlockElements * sizeof(float);
  std::uint64_t used = 0;
  const auto& runs = *job.runs;
  auto run = std::upper_bound(runs.begin(), runs.end(), job.first + element,
                              [](std::uint64_t e, const Run& r) { return e < r.first; }) -
             1;
  for (; element < end; ++run) {
    const std::uint64_t skip = job.first + element - run->first;
    const std::uint64_t count = std::min(end - element, run->count - skip);
    const std::uint64_t bytes = count * dtype_bytes(run->dtype);
    const std::string error =
        read_exactly(*run->file, run->offset + skip * dtype_bytes(run->dtype), source + used, bytes);
    if (!error.empty()) {
      const std::lock_guard lock(*job.mutex);
      if (job.failure->empty()) *job.failure = error;
      return;
    }
    (*job.counts)[slot] += convert(job.level, {run->dtype, job.dtype, run->step, source + used,
                                               job.out + element * dtype_bytes(job.dtype), count});
    used += bytes;
    element += count;
  }
  (*job.source_bytes)[slot] = used;
}

// The initializer being written, and what is known of it so far.
struct WeightStream::Output {
  std::vector<Run> runs;
  DType dtype;
  FileWriter& writer;
  const OnBytes& on_bytes;
  Xxh3 hash = {};
  ConvertCounts counts = {};
};

void WeightStream::write_elements(Output& output, std::uint64_t first, std::uint64_t count) {
  const std::uint64_t size = dtype_bytes(output.dtype);
  const std::uint64_t per_buffer = FileWriter::kBufferBytes / size;
  const std::uint64_t end = first + count;
  std::mutex mutex;
  std::string failure;
  for (; first < end; first += per_buffer) {
    const std::uint64_t now = std::min(per_buffer, end - first);
    const std::uint64_t blocks = (now + kBlockElements - 1) / kBlockElements;
    scratch_.resize(std::max<std::size_t>(scratch_.size(), blocks * kBlockElements * sizeof(float)));
    std::vector<ConvertCounts> counts(blocks);
    std::vector<std::uint64_t> used(blocks);
    const Job job{&output.runs, first,   now,   output.dtype, output.writer.acquire().data(),
                  best_level(), &counts, &used, &mutex,       &failure};
    parallel_for(executor_, static_cast<std::int64_t>(blocks),
                 [&](std::int64_t block) noexcept { fill_block(job, block); });
    if (!failure.empty()) throw Error(failure);
    output.writer.submit(now * size);
    for (std::size_t block = 0; block < blocks; ++block) {
      output.hash.update(std::span(scratch_).subspan(block * kBlockElements * sizeof(float), used[block]));
      output.counts += counts[block];
    }
    output.on_bytes(now * size);
  }
}

// Shares blocks instead of writing; reads the bytes for the hashes alone.
bool WeightStream::clone_bytes(Output& output, std::uint64_t source_offset, std::uint64_t bytes) {
  const MappedFile& file = *output.runs.front().file;
  if (!output.writer.clone(file.descriptor(), source_offset, bytes)) return false;
  constexpr std::size_t kHalf = FileWriter::kBufferBytes;
  scratch_.resize(std::max(scratch_.size(), 2 * kHalf));
  for (std::uint64_t at = 0; at < bytes;) {
    const std::uint64_t now = std::min<std::uint64_t>(bytes - at, kHalf);
    const std::string error = read_exactly(file, source_offset + at, scratch_.data(), now);
    if (!error.empty()) throw Error(error);
    const auto piece = std::span(scratch_).first(now);
    output.hash.update(piece);
    output.writer.account(piece);
    output.counts += convert(best_level(), {output.dtype, output.dtype, ConvertStep::none, scratch_.data(),
                                            scratch_.data() + kHalf, now / dtype_bytes(output.dtype)});
    output.on_bytes(now);
    at += now;
  }
  return true;
}

StreamedWeight WeightStream::write(const WeightRecipe& recipe, DType dtype, FileWriter& writer,
                                   const OnBytes& on_bytes) {
  Output output{runs_of(recipe), dtype, writer, on_bytes};
  const std::uint64_t elements = output.runs.empty() ? 0 : output.runs.back().first + output.runs.back().count;
  const StoredBytes stored = stored_bytes(recipe, dtype, checkpoint_, weights_);
  constexpr std::uint64_t kBlock = FileWriter::kCloneBlock;
  std::uint64_t done = 0;  // elements
  if (stored.file != nullptr && stored.bytes >= kCloneBytes && stored.offset % kBlock == writer.offset() % kBlock &&
      stored.offset % dtype_bytes(dtype) == 0) {
    const std::uint64_t head = (kBlock - stored.offset % kBlock) % kBlock;
    const std::uint64_t shared = (stored.bytes - head) / kBlock * kBlock;
    done = head / dtype_bytes(dtype);
    write_elements(output, 0, done);
    if (clone_bytes(output, stored.offset + head, shared)) done += shared / dtype_bytes(dtype);
  }
  write_elements(output, done, elements - done);
  return {output.counts, output.hash.hex()};
}

StoredBytes stored_bytes(const WeightRecipe& recipe, DType dtype, const Checkpoint& checkpoint,
                         const WeightSource& weights) {
  if (recipe.weights.size() != 1 || !recipe.transforms.empty()) return {};
  const CanonicalWeight& weight = weights.at(recipe.weights.front());
  if (weight.elementwise != Elementwise::none || weight.pieces.size() != 1 || weight.pieces.front().dtype != dtype)
    return {};
  const std::span<const std::byte> bytes = weight.pieces.front().bytes;
  const MappedFile& file = checkpoint.mapping_of(bytes);
  return {&file, static_cast<std::uint64_t>(bytes.data() - file.bytes().data()), bytes.size()};
}

void write_table(const TableRecipe& table, std::uint64_t bytes, std::uint64_t row_bytes, FileWriter& writer,
                 const OnBytes& on_bytes) {
  const std::uint64_t rows = row_bytes == 0 ? 0 : bytes / row_bytes;
  const std::uint64_t per_buffer =
      std::max<std::uint64_t>(1, FileWriter::kBufferBytes / std::max<std::uint64_t>(row_bytes, 1));
  for (std::uint64_t row = 0; row < rows; row += per_buffer) {
    const std::uint64_t count = std::min(per_buffer, rows - row) * row_bytes;
    SLUICE_CHECK(count <= FileWriter::kBufferBytes);
    table.fill(static_cast<std::int64_t>(row), writer.acquire().first(count));
    writer.submit(count);
    on_bytes(count);
  }
}

}  // namespace sluice
