// One work item of GatedDeltaNet: the pieces of a row in order, for the value heads that share a key head.
#include <xmmintrin.h>

#include "kernels/cpu/gated_delta_net_pieces.h"
#include "kernels/cpu/gated_delta_net_simd.h"

namespace sluice::SLUICE_LEVEL {
namespace {

// Square of the longest key the chunked form takes unnormalised: a unit key rounded to bf16 still passes.
constexpr float kUnitKeySquared = 1.015625f;

// While it lives, subnormal operands and results of this thread count as zero: states and decays of a strongly gated head
// pass through that range all the time, where a product takes a hundred times as long (measured: 6 times the whole kernel).
class SubnormalsAsZero {
 public:
  SubnormalsAsZero() { _mm_setcsr(before_ | kFlush | kOperands); }
  ~SubnormalsAsZero() { _mm_setcsr(before_); }
  SubnormalsAsZero(const SubnormalsAsZero&) = delete;
  SubnormalsAsZero& operator=(const SubnormalsAsZero&) = delete;

 private:
  static constexpr unsigned kFlush = 0x8000;     // MXCSR.FTZ
  static constexpr unsigned kOperands = 0x0040;  // MXCSR.DAZ
  unsigned before_ = _mm_getcsr();
};

// Where one value head's state lies between pieces.
struct HeadState {
  const float* source = nullptr;  // [v_dim, k_dim]; null = zeros
  float* rows = nullptr;          // [v_dim, k_dim] where it belongs in the end
  float* panel = nullptr;
  bool in_panel = false;
};

class ItemRun {
 public:
  ItemRun(const gdn::Plan& plan, const gdn::Item& item, std::byte* scratch)
      : plan_(plan), args_(*plan.args), shape_(args_.shape), item_(item) {
    gdn::lay_out(shape_, scratch, work_);
    key_head_ = item.head / (shape_.v_heads / shape_.k_heads);
    segment_ = gdn::segment_of(args_, item.row);
    captured_ = gdn::captured_tokens(args_, item.row);
    for (Index h = 0; h < item.heads; ++h) {
      const Index floats = shape_.v_dim * shape_.k_dim;
      const Index at = (item.row * shape_.v_heads + item.head + h) * floats;
      HeadState& state = states_[h];
      state.source = args_.initial_state == nullptr ? nullptr : args_.initial_state + at;
      state.rows = args_.final_state == nullptr ? work_.row_state + h * floats : args_.final_state + at;
      state.panel = work_.panels == nullptr ? nullptr : work_.panels + h * work_.panel_floats;
    }
  }

  void run() {
    if (args_.initial_state != nullptr) fetch_first_rows(shape_, states_[0].source);
    gdn::clear_capsule(args_, item_);
    for (Index begin = segment_.begin; begin < segment_.end; begin += kGatedDeltaNetChunk) {
      const Index left = segment_.end - begin;
      run_piece(begin, left < kGatedDeltaNetChunk ? left : kGatedDeltaNetChunk);
    }
    for (Index h = 0; h < item_.heads; ++h) finish(states_[h]);
  }

 private:
  void run_piece(Index begin, Index count) {
    begin_ = begin;
    may_chunk_ = count >= kGatedDeltaNetMinChunk && captured_ == 0 && work_.panels != nullptr;
    const bool unit_keys = load_keys(begin, count);
    load_queries(begin, count);
    const bool stable = args_.qk_l2_norm || !has_delta(args_.rule) || unit_keys;
    const bool chunkable = may_chunk_ && stable;
    bool prepared = false;
    HeadGates all_gates[gdn::kMaxHeadsPerItem];  // before the states, so that nothing interrupts their stream
    for (Index h = 0; h < item_.heads; ++h) read_gates(args_, begin, count, item_.head + h, all_gates[h]);
    for (Index h = 0; h < item_.heads; ++h) {
      const Index head = item_.head + h;
      const HeadGates& gates = all_gates[h];
      load_values(begin, count, head);
      if (chunkable && gates.falling) {
        if (!prepared) prepare_chunk(plan_, work_, count);
        prepared = true;
        enter_panel(states_[h]);
        chunk_piece(plan_, work_, count, gates, states_[h].panel);
      } else {
        leave_panel(states_[h], true);
        recur(begin, count, h, gates);
      }
      store_outputs(begin, count, head);
    }
  }

  void recur(Index begin, Index count, Index h, const HeadGates& gates) {
    RecurrentHead head;
    head.gates = &gates;
    head.state = states_[h].rows;
    if (shape_.per_key && gates.decays) read_key_factors(args_, work_, begin, count, item_.head + h);
    const Index slot = begin - segment_.begin;
    if (slot < captured_) {
      head.captured = captured_ - slot;
      head.delta_stride = shape_.v_heads * shape_.v_dim;
      head.delta = gdn::capsule_of(args_, item_.row).delta + (slot * shape_.v_heads + item_.head + h) * shape_.v_dim;
      capture_tokens(slot, count, item_.head + h, gates);
    }
    head.source = states_[h].source;
    head.source_end = head.source + (item_.heads - h) * shape_.v_dim * shape_.k_dim;
    states_[h].source = states_[h].rows;
    recurrent_piece(plan_, work_, count, head);
  }

  // Decays and keys of the captured tokens; slots and tokens of the piece count alike, from `slot`.
  void capture_tokens(Index slot, Index count, Index head, const HeadGates& gates) {
    const gdn::Capsule capsule = gdn::capsule_of(args_, item_.row);
    const bool leads = head % (shape_.v_heads / shape_.k_heads) == 0;
    const Index width = shape_.per_key ? shape_.k_dim : 1;
    for (Index t = 0; t < count && slot + t < captured_; ++t) {
      float* decay = capsule.decay + ((slot + t) * shape_.v_heads + head) * width;
      const bool per_key = shape_.per_key && has_decay(args_.rule);
      if (per_key) {
        std::memcpy(decay, work_.factors + t * work_.kpad, static_cast<std::size_t>(width) * sizeof(float));
      } else {
        for (Index i = 0; i < width; ++i) std::memcpy(decay + i, &gates.factor[t], sizeof(float));
      }
      if (!leads) continue;
      std::memcpy(capsule.key + ((slot + t) * shape_.k_heads + key_head_) * shape_.k_dim, work_.keys + t * work_.kpad,
                  static_cast<std::size_t>(shape_.k_dim) * sizeof(float));
    }
  }

  const std::byte* address(const HeadsView& view, Index token, Index head) const {
    const Index size = args_.dtype == DType::f32 ? 4 : 2;
    return static_cast<const std::byte*>(view.data) + (token * view.token_stride + head * view.head_stride) * size;
  }

  // Rows behind a short piece are zero, so that the blocks which reach beyond it compute with ordinary numbers.
  void clear_behind(float* rows, Index count, Index stride) const {
    if (!may_chunk_) return;
    if (count == kGatedDeltaNetChunk && begin_ != segment_.begin) return;  // as the piece before left it
    for (Index i = count * stride; i < work_.cap * stride; i += kLanes) hn::StoreU(hn::Zero(kF32), kF32, rows + i);
  }

  // Returns whether no key is longer than one.
  bool load_keys(Index begin, Index count) {
    bool unit = true;
    for (Index t = 0; t < count; ++t) {
      float* row = work_.keys + t * work_.kpad;
      load_row(address(args_.key, begin + t, key_head_), args_.dtype, shape_.k_dim, row, work_.kpad);
      const float squares = sum_squares(row, work_.kpad);
      unit = unit && squares <= kUnitKeySquared;
      if (args_.qk_l2_norm) scale_row(row, work_.kpad, 1.0f / root(squares + args_.qk_l2_epsilon));
    }
    clear_behind(work_.keys, count, work_.kpad);
    return unit;
  }

  void load_queries(Index begin, Index count) {
    const Index head = gdn::query_head(shape_, item_.head);
    for (Index q = 0; q < plan_.queries; ++q) {
      float* rows = work_.queries + q * work_.cap * work_.kpad;
      for (Index t = 0; t < count; ++t) {
        float* row = rows + t * work_.kpad;
        load_row(address(args_.query, begin + t, head + q), args_.dtype, shape_.k_dim, row, work_.kpad);
        float factor = plan_.scale;
        if (args_.qk_l2_norm) factor /= root(sum_squares(row, work_.kpad) + args_.qk_l2_epsilon);
        scale_row(row, work_.kpad, factor);
      }
      clear_behind(rows, count, work_.kpad);
    }
  }

  void load_values(Index begin, Index count, Index head) {
    for (Index t = 0; t < count; ++t) {
      load_row(address(args_.value, begin + t, head), args_.dtype, shape_.v_dim, work_.values + t * work_.vpad,
               work_.vpad);
    }
    clear_behind(work_.values, count, work_.vpad);
  }

  void store_outputs(Index begin, Index count, Index head) {
    const Index size = args_.dtype == DType::f32 ? 4 : 2;
    const Index first = gdn::output_head(shape_, head);
    for (Index q = 0; q < plan_.queries; ++q) {
      for (Index t = 0; t < count; ++t) {
        const Index at = ((begin + t) * shape_.output_heads() + first + q) * shape_.v_dim;
        const float* row = work_.outputs + (q * work_.cap + t) * work_.vpad;
        store_row(row, args_.dtype, shape_.v_dim, static_cast<std::byte*>(args_.output) + at * size);
      }
    }
  }

  static float root(float x) { return hn::GetLane(hn::Sqrt(hn::Set(kF32, x))); }

  void enter_panel(HeadState& state) {
    if (!state.in_panel) state_to_panel(shape_, state.source, state.panel);
    state.in_panel = true;
  }

  // Brings the state back to its rows; `wanted` when somebody will read them.
  void leave_panel(HeadState& state, bool wanted) {
    const std::size_t bytes = static_cast<std::size_t>(shape_.v_dim * shape_.k_dim) * sizeof(float);
    if (state.in_panel) {
      if (wanted) panel_to_state(shape_, state.panel, state.rows);
      state.source = state.rows;
      state.in_panel = false;
    } else if (state.source == nullptr && wanted) {
      std::memset(state.rows, 0, bytes);
      state.source = state.rows;
    }
  }

  void finish(HeadState& state) {
    if (args_.final_state == nullptr) return;
    leave_panel(state, true);
    if (state.source == state.rows) return;  // an empty row passes its state through
    std::memcpy(state.rows, state.source, static_cast<std::size_t>(shape_.v_dim * shape_.k_dim) * sizeof(float));
  }

  const gdn::Plan& plan_;
  const GatedDeltaNetArgs& args_;
  const GatedDeltaNetShape& shape_;
  gdn::Item item_;
  gdn::Workspace work_;
  gdn::Segment segment_;
  Index key_head_ = 0;
  Index begin_ = 0;  // of the piece at hand
  bool may_chunk_ = false;
  Index captured_ = 0;
  HeadState states_[gdn::kMaxHeadsPerItem];
};

}  // namespace

void gated_delta_net_item(const gdn::Plan& plan, const gdn::Item& item, std::byte* scratch) noexcept {
  const SubnormalsAsZero guard;
  ItemRun(plan, item, scratch).run();
}

}  // namespace sluice::SLUICE_LEVEL
