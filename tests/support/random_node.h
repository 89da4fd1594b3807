// Random nodes, right and wrong: a valid node of one of our operators with a few things about it changed.
#pragma once

#include "tests/support/node_case.h"

namespace sluice::ops {

// Where choices come from: a seed, or a fuzzer's bytes.
class Choices {
 public:
  virtual ~Choices() = default;
  // [low, high], both included.
  virtual std::int64_t integer(std::int64_t low, std::int64_t high) = 0;

  bool chance(int percent) { return integer(0, 99) < percent; }
  template <typename T>
  T one_of(std::initializer_list<T> options) {
    return options.begin()[integer(0, static_cast<std::int64_t>(options.size()) - 1)];
  }
};

class SeededChoices final : public Choices {
 public:
  explicit SeededChoices(std::uint64_t seed) : draw_(seed) {}
  std::int64_t integer(std::int64_t low, std::int64_t high) override { return draw_.integer(low, high); }

 private:
  Draw draw_;
};

// A node every validator accepts; at most a few thousand elements a tensor.
NodeCase random_node(Choices& choices);

// Leaves out, adds, reshapes, retypes or corrupts inputs and attributes. The result may still be right.
void corrupt(NodeCase& node, Choices& choices);

}  // namespace sluice::ops
