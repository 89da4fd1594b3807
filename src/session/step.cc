#include "session/step.h"

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace sluice {
namespace {

// An integer input in the width that the graph wants. Filled once, then bound.
class Integers {
 public:
  Integers(const PortInfo& port, Shape shape) : port_(&port), shape_(std::move(shape)) {
    const auto count = element_count(shape_);
    SLUICE_CHECK(count.has_value());
    if (port.dtype == DType::i64) {
      wide_.reserve(*count);
    } else if (port.dtype == DType::i32) {
      narrow_.reserve(*count);
    } else {
      fail("input '{}' is {}; this program can feed i64 and i32", port.name, dtype_name(port.dtype));
    }
  }

  void push(std::int64_t value) {
    if (port_->dtype == DType::i64) {
      wide_.push_back(value);
    } else {
      narrow_.push_back(static_cast<std::int32_t>(value));
    }
  }
  template <typename T>
  void push_all(std::span<const T> values) {
    for (const T value : values) push(value);
  }

  PortBinding binding() {
    const bool wide = port_->dtype == DType::i64;
    void* data = wide ? static_cast<void*>(wide_.data()) : static_cast<void*>(narrow_.data());
    const std::size_t bytes = wide ? wide_.size() * sizeof(std::int64_t) : narrow_.size() * sizeof(std::int32_t);
    return {port_->name, {port_->dtype, shape_, data, bytes}};
  }

 private:
  const PortInfo* port_;
  Shape shape_;
  std::vector<std::int64_t> wide_;
  std::vector<std::int32_t> narrow_;
};

// The inputs of one call. Integers live here until the call is over.
class Feeds {
 public:
  explicit Feeds(const Session& session) : session_(&session) { integers_.reserve(12); }

  // Calls fill(integers) for the input if the graph has it.
  template <typename Fill>
  void add(std::string_view name, Shape shape, Fill&& fill) {
    const PortInfo* port = session_->input(name);
    if (port == nullptr) return;
    Integers& integers = integers_.emplace_back(*port, std::move(shape));
    fill(integers);
  }

  void run(std::span<const StateBinding> states, std::span<const PortBinding> more_outputs, const TensorRef& logits) {
    const GraphInfo& graph = session_->graph();
    SLUICE_CHECK(states.size() == graph.states.size());
    std::vector<PortBinding> inputs;
    std::vector<PortBinding> outputs = {{"logits", logits}};
    outputs.insert(outputs.end(), more_outputs.begin(), more_outputs.end());
    for (Integers& integers : integers_) inputs.push_back(integers.binding());
    for (std::size_t i = 0; i < states.size(); ++i) {
      inputs.push_back({graph.states[i].input, states[i].past});
      outputs.push_back({graph.states[i].output, states[i].present});
    }
    session_->run(inputs, outputs);
  }

 private:
  const Session* session_;
  std::vector<Integers> integers_;
};

// ONNX's Gather takes negative ids from the table's end, so a wrong id would pass unnoticed.
void check_ids(const Session& session, std::span<const std::int64_t> ids) {
  const std::int64_t vocab = session.manifest().model.vocab;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab)
      fail("token {} has id {}; this package's vocabulary has ids 0 to {}", i, ids[i], vocab - 1);
  }
}

// Planes of a position input with `rank` extents without planes: mRoPE graphs may want three, equal for text.
std::int64_t position_planes(const Session& session, std::size_t rank) {
  const PortInfo* port = session.input("position_ids");
  return port != nullptr && port->shape.size() > rank ? std::max<std::int64_t>(port->shape.front().value, 1) : 0;
}

Shape with_planes(std::int64_t planes, Shape shape) {
  if (planes > 0) shape.insert(shape.begin(), planes);
  return shape;
}

}  // namespace

void run_step(const Session& session, const DenseStep& step) {
  SLUICE_CHECK(step.batch > 0 && step.past_length >= 0);
  SLUICE_CHECK(step.input_ids.size() % static_cast<std::size_t>(step.batch) == 0);
  check_ids(session, step.input_ids);
  const std::int64_t batch = step.batch, tokens = static_cast<std::int64_t>(step.input_ids.size()) / batch;
  const std::int64_t total = step.past_length + tokens;
  const std::int64_t planes = position_planes(session, 2);
  Feeds feeds(session);
  feeds.add("input_ids", {batch, tokens}, [&](Integers& ids) { ids.push_all(step.input_ids); });
  feeds.add("attention_mask", {batch, total}, [&](Integers& mask) {
    for (std::int64_t i = 0; i < batch * total; ++i) mask.push(1);
  });
  feeds.add("position_ids", with_planes(planes, {batch, tokens}), [&](Integers& positions) {
    for (std::int64_t row = 0; row < std::max<std::int64_t>(planes, 1) * batch; ++row) {
      for (std::int64_t t = 0; t < tokens; ++t) positions.push(step.past_length + t);
    }
  });
  feeds.run(step.states, {}, step.logits);
}

namespace {

struct Bounds {  // of a packed step's rows
  std::int64_t longest_query = 0, longest_total = 0, shortest_total = 0;
};

Bounds bounds_of(const PackedStep& step) {
  Bounds bounds;
  for (std::size_t b = 0; b < step.past_lengths.size(); ++b) {
    const std::int64_t query = step.cu_seqlens[b + 1] - step.cu_seqlens[b];
    const std::int64_t total = query + step.past_lengths[b];
    bounds.longest_query = std::max(bounds.longest_query, query);
    bounds.longest_total = std::max(bounds.longest_total, total);
    bounds.shortest_total = b == 0 ? total : std::min(bounds.shortest_total, total);
  }
  return bounds;
}

void push_positions(const PackedStep& step, Integers& positions) {
  for (std::size_t b = 0; b < step.past_lengths.size(); ++b) {
    const std::int64_t count = step.cu_seqlens[b + 1] - step.cu_seqlens[b];
    for (std::int64_t t = 0; t < count; ++t) positions.push(step.past_lengths[b] + t);
  }
}

void push_metadata(const PackedStep& step, std::int64_t count, Integers& metadata) {
  const Bounds bounds = bounds_of(step);
  const std::int64_t values[] = {bounds.longest_query, bounds.longest_total, bounds.shortest_total};
  for (std::int64_t i = 0; i < count; ++i) metadata.push(values[i]);
}

std::int64_t metadata_count(const Session& session) {
  const PortInfo* port = session.input("attention_metadata");
  return port != nullptr && port->shape.size() == 1 && port->shape[0].value == 2 ? 2 : 3;
}

}  // namespace

void run_step(const Session& session, const PackedStep& step) {
  const std::int64_t batch = static_cast<std::int64_t>(step.past_lengths.size());
  const std::int64_t tokens = static_cast<std::int64_t>(step.input_ids.size());
  SLUICE_CHECK(step.cu_seqlens.size() == step.past_lengths.size() + 1 && step.cu_seqlens.back() == tokens);
  check_ids(session, step.input_ids);
  const std::int64_t max_blocks = batch > 0 ? static_cast<std::int64_t>(step.block_table.size()) / batch : 0;
  const std::int64_t planes = position_planes(session, 1), metadata = metadata_count(session);
  Feeds feeds(session);
  feeds.add("input_ids", {tokens}, [&](Integers& ids) { ids.push_all(step.input_ids); });
  feeds.add("position_ids", with_planes(planes, {tokens}), [&](Integers& positions) {
    for (std::int64_t plane = 0; plane < std::max<std::int64_t>(planes, 1); ++plane) push_positions(step, positions);
  });
  feeds.add("block_table", {batch, max_blocks}, [&](Integers& table) { table.push_all(step.block_table); });
  feeds.add("cumulative_sequence_lengths", {batch + 1}, [&](Integers& offsets) { offsets.push_all(step.cu_seqlens); });
  feeds.add("past_sequence_lengths", {batch}, [&](Integers& lengths) { lengths.push_all(step.past_lengths); });
  feeds.add("attention_metadata", {metadata}, [&](Integers& values) { push_metadata(step, metadata, values); });
  feeds.add("logits_indices", {static_cast<std::int64_t>(step.logits_indices.size())},
            [&](Integers& rows) { rows.push_all(step.logits_indices); });
  feeds.add("state_update_capture_count", {batch}, [&](Integers& counts) {
    for (std::int64_t b = 0; b < batch; ++b)
      counts.push(step.capture_count.empty() ? 0 : step.capture_count[static_cast<std::size_t>(b)]);
  });
  feeds.add("state_update_active", {1}, [&](Integers& active) { active.push(step.state_update_active ? 1 : 0); });
  feeds.run(step.states, step.state_updates, step.logits);
}

Shape state_shape(const StateInfo& state, const StateExtents& extents) {
  const bool paged = state.kind == StateKind::paged_kv;
  Shape shape;
  for (std::size_t i = 0; i < state.shape.size(); ++i) {
    const Extent& extent = state.shape[i];
    if (extent.value >= 0) {
      shape.push_back(extent.value);
    } else if (i == 0) {
      shape.push_back(paged ? extents.blocks : extents.batch);
    } else if (paged && i == 1 && extents.block_size > 0) {
      shape.push_back(extents.block_size);
    } else if (state.kind == StateKind::growing_kv && i == 2) {
      shape.push_back(extents.tokens);
    } else {
      fail("state '{}': extent {} is the symbol '{}', which says nothing about its size; expected a number",
           state.input, i, extent.symbol);
    }
  }
  return shape;
}

}  // namespace sluice
