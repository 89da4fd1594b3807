// Holds a weight table against a checkpoint: which tensor is which, and what is missing, unexpected or of a wrong kind.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weights/weight_source.h"

namespace sluice {

class WeightResolver {
 public:
  WeightResolver(const HybridConfig& config, const Checkpoint& checkpoint, WeightSource& out);
  // Fills `out`, or throws the one Error that says best what is wrong.
  void resolve();

 private:
  void find_prefix();
  const CheckpointTensor* lookup(std::string_view name) const;
  const CheckpointTensor* lookup_head() const;
  const WeightForm* choose_form(const WeightSpec& spec);
  void resolve(const WeightSpec& spec);
  // The tensor, claimed and checked; null (and noted) when it is missing or of a wrong kind.
  const CheckpointTensor* claim(const SourceTensor& source);
  static void append(CanonicalWeight& weight, const CheckpointTensor& tensor, const RowRun& run,
                     std::int32_t& last_file);
  void sort_leftovers();
  std::optional<std::string> reason_unused(std::string_view name) const;
  void check_tied_head(const CheckpointTensor& head) const;
  void report() const;
  std::string why_expected(std::string_view name) const;
  std::string why_unexpected(std::string_view name) const;
  void note_unused();
  std::string where() const { return checkpoint_.directory().string(); }

  // Something wrong with tensors: the first in table (or name) order, and how many.
  struct Complaint {
    std::string first;
    std::uint64_t count = 0;
    void add(std::string text);
  };

  const HybridConfig& config_;
  const Checkpoint& checkpoint_;
  WeightSource& out_;
  std::vector<bool> claimed_;  // [tensors of the checkpoint]
  Complaint refused_;          // quantised tensors, adapters
  Complaint wrong_dtype_;
  Complaint wrong_shape_;
  Complaint missing_;
  Complaint unexpected_;
};

}  // namespace sluice
