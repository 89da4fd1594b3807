// A node as its kernel is created: its name, attributes and constant inputs.
#pragma once

#include <optional>

#include "ops/argument.h"
#include "ops/attributes.h"
#include "ops/ort.h"

namespace sluice::ops {

class Node final : public Attributes {
 public:
  Node(const OperatorSpec& spec, const OrtApi& api, const OrtKernelInfo& info)
      : Attributes(spec), api_(api), info_(info) {}

  std::string name() const;
  // How many inputs and outputs the node lists, left-out ones in between included.
  std::size_t input_count() const;
  std::size_t output_count() const;
  bool has_input(int index) const;
  // An initializer that no run can change: its bytes stay where they are (mapped from the model's files) as long as the
  // kernel lives. Empty for an absent input and for one that is computed or fed.
  std::optional<Argument> constant_input(int index) const;

 private:
  std::optional<std::int64_t> find_integer(const char* name) const override;
  std::optional<float> find_number(const char* name) const override;
  std::optional<std::string> find_text(const char* name) const override;
  std::optional<std::vector<std::int64_t>> find_integers(const char* name) const override;
  // Error when an attribute of that name exists: it is not of the type `expected`.
  void refuse_other_type(const char* name, std::string_view expected) const;

  const OrtApi& api_;
  const OrtKernelInfo& info_;
};

// Shape, element type and address of a tensor; index and name are the input's, for errors.
Argument read_tensor(const OrtApi& api, const OrtValue& value, int index, std::string_view name);

}  // namespace sluice::ops
