#include "ops/context.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "base/error.h"
#include "base/shape.h"
#include "ops/node.h"

namespace sluice::ops {
namespace {

struct Trampoline {
  Executor::Item item;
  void* context;
};

[[noreturn]] void refuse_scratch(std::size_t bytes) { fail("scratch memory: {} bytes could not be allocated", bytes); }

void run_item(void* data, std::size_t index) {
  const auto& trampoline = *static_cast<const Trampoline*>(data);
  trampoline.item(trampoline.context, static_cast<std::int64_t>(index));
}

}  // namespace

void SessionExecutor::run(std::int64_t count, Item item, void* context) noexcept {
  if (count == 1) return item(context, 0);  // no hand-over for one item
  if (count <= 0) return;
  Trampoline trampoline{item, context};
  OrtStatus* status =
      api_.KernelContext_ParallelFor(&context_, run_item, static_cast<std::size_t>(count), 0, &trampoline);
  if (status == nullptr) return;
  api_.ReleaseStatus(status);  // refused before any item ran: the calling thread runs them all
  for (std::int64_t i = 0; i < count; ++i) item(context, i);
}

Scratch::Scratch(const OrtApi& api, const OrtKernelContext& context, std::size_t bytes) : api_(api) {
  if (bytes == 0) return;
  if (bytes > kMaxFromSession) {
    block_ = bytes <= SIZE_MAX - kAlignment ? std::malloc(bytes + kAlignment) : nullptr;
    if (block_ == nullptr) refuse_scratch(bytes);
    align(bytes);
    return;
  }
  OrtHandle<OrtMemoryInfo> memory(api.ReleaseMemoryInfo);
  check(api, api.CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, memory.out()));
  check(api, api.KernelContext_GetAllocator(&context, memory.get(), &allocator_));
  block_ = allocator_->Alloc(allocator_, bytes + kAlignment);
  if (block_ == nullptr) {
    api.ReleaseAllocator(allocator_);
    refuse_scratch(bytes);
  }
  align(bytes);
}

void Scratch::align(std::size_t bytes) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(block_);
  const std::size_t skip = (kAlignment - address % kAlignment) % kAlignment;
  bytes_ = {static_cast<std::byte*>(block_) + skip, bytes};
}

Scratch::~Scratch() {
  if (block_ == nullptr) return;
  if (allocator_ == nullptr) {
    std::free(block_);
    return;
  }
  allocator_->Free(allocator_, block_);
  api_.ReleaseAllocator(allocator_);
}

Context::Context(const OrtApi& api, OrtKernelContext& context, const OperatorSpec& spec,
                 std::span<const InPlace> in_place)
    : api_(api), context_(context), spec_(spec), in_place_(in_place) {
  check(api, api.KernelContext_GetInputCount(&context, &input_count_));
  check(api, api.KernelContext_GetOutputCount(&context, &output_count_));
}

Argument Context::input(int index) {
  Argument argument = input_in_place(index);
  if (is_aligned(argument.data, argument.dtype)) return argument;
  const auto bytes = static_cast<std::size_t>(argument.shape.elements()) * dtype_bytes(argument.dtype);
  std::byte* copy = copies_.emplace_back(std::make_unique<std::byte[]>(bytes)).get();
  std::memcpy(copy, argument.data, bytes);
  argument.data = copy;
  return argument;
}

Argument Context::input_in_place(int index) {
  const PortSpec& port = spec_.inputs[static_cast<std::size_t>(index)];
  const OrtValue* value = nullptr;
  if (static_cast<std::size_t>(index) < input_count_) {
    check(api_, api_.KernelContext_GetInput(&context_, static_cast<std::size_t>(index), &value));
  }
  if (value != nullptr) {
    const Argument argument = read_tensor(api_, *value, index, port.name);
    add(memory_of(argument));
    return argument;
  }
  Argument absent;
  absent.index = index;
  absent.name = port.name;
  if (port.presence == Presence::required) fail("{} is missing", label(absent));
  return absent;
}

Context::Memory Context::memory_of(const Argument& argument) {
  const auto bytes = byte_count(argument.shape.span(), argument.dtype).value_or(0);  // what exists can be counted
  return {static_cast<const std::byte*>(argument.data), bytes, "input", argument.index, argument.name};
}

void Context::add(const Memory& memory) {
  SLUICE_CHECK(memory_count_ < memory_.size());
  memory_[memory_count_++] = memory;
}

void Context::expect_own(const Memory& written, int shared) const {
  const std::less<const std::byte*> before;
  for (const Memory& other : std::span(memory_).first(memory_count_)) {
    const bool apart = written.bytes == 0 || other.bytes == 0 || !before(written.begin, other.begin + other.bytes) ||
                       !before(other.begin, written.begin + written.bytes);
    if (apart || (other.index == shared && other.kind == "input" && other.begin == written.begin)) continue;
    fail("{} {} ({}): expected memory of its own, found that of {} {} ({})", written.kind, written.index, written.name,
         other.kind, other.index, other.name);
  }
}

void* Context::written_input(const Argument& input) {
  expect_own(memory_of(input), input.index);
  return const_cast<void*>(input.data);
}

void* Context::output(int index, DType dtype, const Dims& shape) {
  if (static_cast<std::size_t>(index) >= output_count_) return nullptr;
  const std::int64_t elements = shape.elements();  // refuses what ONNX Runtime would multiply without looking
  OrtValue* value = nullptr;
  check(api_, api_.KernelContext_GetOutput(&context_, static_cast<std::size_t>(index), shape.span().data(),
                                           shape.rank(), &value));
  if (value == nullptr) return nullptr;
  OrtHandle<OrtTensorTypeAndShapeInfo> info(api_.ReleaseTensorTypeAndShapeInfo);
  check(api_, api_.GetTensorTypeAndShape(value, info.out()));
  ONNXTensorElementDataType found;
  check(api_, api_.GetTensorElementType(info.get(), &found));
  if (found != dtype_to_ort(dtype)) {
    const PortSpec& port = spec_.outputs[static_cast<std::size_t>(index)];
    const std::string where = fmt::format("output {} ({})", index, port.name);
    fail("{}: expected {}, found {}", where, dtype_name(dtype), dtype_name(dtype_from_ort(found, where)));
  }
  void* data = nullptr;
  check(api_, api_.GetTensorMutableData(value, &data));
  if (!is_aligned(data, dtype)) {
    fail("output {} ({}): expected memory at a multiple of {} bytes", index,
         spec_.outputs[static_cast<std::size_t>(index)].name, dtype_bytes(dtype));
  }
  const Memory memory{static_cast<const std::byte*>(data), static_cast<std::size_t>(elements) * dtype_bytes(dtype),
                      "output", index, spec_.outputs[static_cast<std::size_t>(index)].name};
  const auto pair = std::ranges::find(in_place_, index, &InPlace::output);
  expect_own(memory, pair == in_place_.end() ? -1 : pair->input);
  add(memory);
  return data;
}

}  // namespace sluice::ops
