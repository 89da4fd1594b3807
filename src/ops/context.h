// One run of a node: its inputs, outputs, scratch memory and the session's threads.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/executor.h"
#include "ops/argument.h"
#include "ops/ort.h"
#include "opset/operator.h"

namespace sluice::ops {

// The intra-op threads of the session that runs the node.
class SessionExecutor final : public Executor {
 public:
  SessionExecutor(const OrtApi& api, const OrtKernelContext& context) : api_(api), context_(context) {}
  void run(std::int64_t count, Item item, void* context) noexcept override;

 private:
  const OrtApi& api_;
  const OrtKernelContext& context_;
};

// Memory given back at the end of the run, aligned to kAlignment bytes. From the session's allocator, which keeps it for
// the next call; but more than kMaxFromSession from the C library: the session's allocator throws where memory is short,
// and an exception of the runtime cannot pass through this library, which has an unwinder of its own.
class Scratch {
 public:
  static constexpr std::size_t kAlignment = 64;
  static constexpr std::size_t kMaxFromSession = std::size_t{256} << 20;

  Scratch(const OrtApi& api, const OrtKernelContext& context, std::size_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  void align(std::size_t bytes) noexcept;

  const OrtApi& api_;
  OrtAllocator* allocator_ = nullptr;  // null: from the C library
  void* block_ = nullptr;
  std::span<std::byte> bytes_;
};

// An output that may be its input's memory.
struct InPlace {
  int input;
  int output;
};

class Context {
 public:
  Context(const OrtApi& api, OrtKernelContext& context, const OperatorSpec& spec, std::span<const InPlace> in_place);

  // Not present for a left-out input. Error when a required input is missing, or its element type is none of ours. A
  // tensor at an address that is no multiple of its element size (a constant anywhere in a mapped file) is copied for
  // the run, so that kernels may load its elements one by one.
  Argument input(int index);
  // The same at whatever address it is: for large weights, which their kernels read from anywhere.
  Argument input_in_place(int index);
  // Null when the node does not list that output. Error when the shape is out of bounds, the graph gives the output
  // another element type than `dtype`, or the caller bound memory that is not aligned to the element size or that is
  // also an input's or another output's: kernels write while they still read. Ask for the inputs first.
  void* output(int index, DType dtype, const Dims& shape);
  // The memory of an input that was asked for, to be written to. Error when it is also another input's.
  void* written_input(const Argument& input);
  Scratch scratch(std::size_t bytes) const { return {api_, context_, bytes}; }
  SessionExecutor executor() const { return {api_, context_}; }

 private:
  // What one input or output occupies.
  struct Memory {
    const std::byte* begin = nullptr;
    std::size_t bytes = 0;
    std::string_view kind;  // "input" or "output"
    int index = 0;
    std::string_view name;
  };

  static Memory memory_of(const Argument& argument);
  void add(const Memory& memory);
  // Error when `written` shares bytes with anything added but what lies at its very place and is `shared`, an input.
  void expect_own(const Memory& written, int shared) const;

  const OrtApi& api_;
  OrtKernelContext& context_;
  const OperatorSpec& spec_;
  std::span<const InPlace> in_place_;
  std::array<Memory, 24> memory_;
  std::size_t memory_count_ = 0;
  std::size_t input_count_ = 0;
  std::size_t output_count_ = 0;
  std::vector<std::unique_ptr<std::byte[]>> copies_;
};

}  // namespace sluice::ops
