// A node drawn from the fuzzer's bytes, right or wrong, through validator and kernels: an error or two equal answers.
#include <cstdint>
#include <cstdlib>

#include "tests/support/direct_node.h"
#include "tests/support/random_node.h"

namespace sluice::ops {
namespace {

// Reads as many bytes as a choice needs; zeros when there are none left.
class ByteChoices final : public Choices {
 public:
  ByteChoices(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {}

  std::int64_t integer(std::int64_t low, std::int64_t high) override {
    const std::uint64_t span = static_cast<std::uint64_t>(high - low) + 1;
    std::uint64_t value = 0;
    for (std::uint64_t reach = 1; reach < span && left_ > 0; reach <<= 8) {
      value = value << 8 | *data_++;
      --left_;
    }
    return low + static_cast<std::int64_t>(value % span);
  }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
};

}  // namespace
}  // namespace sluice::ops

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sluice::ops;
  ByteChoices choices(data, size);
  NodeCase node = random_node(choices);
  if (choices.chance(80)) corrupt(node, choices);
  sluice::SerialExecutor serial;
  const Outcome scalar = run_direct(node, sluice::Level::scalar, serial);
  const Outcome fast = run_direct(node, sluice::best_level(), serial);
  if (fast.error != scalar.error) std::abort();
  return 0;
}
