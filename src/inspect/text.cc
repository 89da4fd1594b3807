#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "inspect/report.h"

namespace sluice {
namespace {

// Lines of one report; columns are padded to the widest cell.
class Lines {
 public:
  template <typename... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
    out_ += '\n';
  }
  void blank() { out_ += '\n'; }

  // `right` says which columns are flush right.
  void table(const std::vector<std::vector<std::string>>& rows, std::string_view right) {
    std::vector<std::size_t> widths(right.size());
    for (const auto& row : rows) {
      for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    }
    for (const auto& row : rows) {
      std::string text = " ";
      for (std::size_t i = 0; i < row.size(); ++i) {
        const bool last = i + 1 == row.size();
        if (right[i] == 'r') {
          text += fmt::format(" {:>{}} ", row[i], widths[i]);
        } else {
          text += last ? " " + row[i] : fmt::format(" {:<{}} ", row[i], widths[i]);
        }
      }
      text.erase(text.find_last_not_of(' ') + 1);
      line("{}", text);
    }
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

// One letter a layer, in groups of eight.
std::string pattern(const InspectReport& report) {
  std::string text;
  for (std::size_t i = 0; i < report.layers.size(); ++i) {
    if (i > 0 && i % 8 == 0) text += ' ';
    text += report.layers[i].kind == LayerKind::full_attention ? 'F' : '-';
  }
  return text;
}

void add_model(Lines& out, const InspectReport& r) {
  const ModelFacts& m = r.model;
  const PartReport total = r.total();
  const std::string active = total.active_parameters * 10 < total.parameters * 9 && m.experts > 0
                                 ? fmt::format(", {} active a token", count_in_words(total.active_parameters))
                                 : "";
  out.line("{}: {}, {}", r.path, r.subject == InspectReport::Subject::package ? "package" : "checkpoint", m.model_type);
  const std::string where = r.subject == InspectReport::Subject::package
                                ? ""
                                : fmt::format(" in {} file{}", r.files.size(), r.files.size() == 1 ? "" : "s");
  out.line("  {} parameters{}; {} of weights{}; vocabulary {}{}, context {}", count_in_words(total.parameters), active,
           bytes_in_words(total.bytes), where, m.vocab, m.tied ? " (tied)" : "", m.context);
  out.line("  {} layers: {}", r.layers.size(), layers_in_words(r));
  out.line("    {}    (- linear, F full attention)", pattern(r));
  std::string mlp = m.intermediate > 0 ? fmt::format(", MLP {}", m.intermediate) : "";
  if (m.experts > 0) mlp += fmt::format(", {} experts, {} a token", m.experts, m.experts_per_token);
  out.line("  hidden {}{}", m.hidden, mlp);
  out.line("  full attention: {} query heads, {} key-value heads of {}", m.heads, m.kv_heads, m.head_dim);
  out.line("  linear attention: {} key heads of {}, {} value heads of {}, convolution over {} tokens", m.linear_k_heads,
           m.linear_k_dim, m.linear_v_heads, m.linear_v_dim, m.conv_kernel);
  if (!m.rope.empty()) out.line("  rotary positions: {}", m.rope);
  for (const auto& [key, value] : r.build) out.line("  {}: {}", key, value);
}

void add_parts(Lines& out, const InspectReport& r) {
  const PartReport total = r.total();
  std::vector<std::vector<std::string>> rows{{"where the bytes are", "parameters", "bytes", "share", "read a token"}};
  for (std::size_t i = 0; i < kParts; ++i) {
    const PartReport& part = r.parts[i];
    if (part.bytes == 0) continue;
    std::string label(label_of(static_cast<Part>(i)));
    if (static_cast<Part>(i) == Part::embedding && r.model.tied) label += " and output projection";
    rows.push_back({label, count_in_words(part.parameters), bytes_in_words(part.bytes),
                    fmt::format("{:.1f} %", 100 * static_cast<double>(part.bytes) / static_cast<double>(total.bytes)),
                    bytes_in_words(part.active_bytes)});
  }
  rows.push_back(
      {"all", count_in_words(total.parameters), bytes_in_words(total.bytes), "", bytes_in_words(total.active_bytes)});
  out.blank();
  out.table(rows, "lrrrr");
  if (r.unused_bytes() > 0) out.line("  and {} that are left out", bytes_in_words(r.unused_bytes()));
}

void add_state(Lines& out, const InspectReport& r) {
  const StateReport& s = r.state;
  out.blank();
  out.line("  a sequence keeps");
  out.line("    {} whatever its length: recurrent state {} ({}), convolution {} ({})", bytes_in_words(s.fixed_bytes()),
           bytes_in_words(s.recurrent_bytes), dtype_name(s.recurrent_dtype), bytes_in_words(s.conv_bytes),
           dtype_name(s.conv_dtype));
  out.line("    {} of KV cache a token ({}): {} at {} tokens", bytes_in_words(s.kv_bytes_per_token),
           dtype_name(s.kv_dtype), bytes_in_words(s.kv_bytes_per_token * static_cast<std::uint64_t>(r.model.context)),
           r.model.context);
  if (const std::uint64_t tokens = crossover_tokens(s))
    out.line("    the cache outgrows the state at {} tokens", tokens);
}

void add_tensors(Lines& out, const InspectReport& r) {
  std::vector<std::vector<std::string>> rows{{"tensor", "dtype", "shape", "count", "bytes", "goes to"}};
  for (const TensorGroup& g : group_tensors(r)) {
    rows.push_back({g.name, std::string(dtype_name(g.dtype)), to_string(g.shape),
                    g.count == 1 ? "" : fmt::format("x {}", g.count), bytes_in_words(g.bytes),
                    g.used ? g.use : fmt::format("left out: {}", g.use)});
  }
  out.blank();
  out.table(rows, "lllrrl");
}

void add_lists(Lines& out, const InspectReport& r) {
  if (!r.operators.empty()) {
    std::vector<std::vector<std::string>> rows{{"operator", "nodes"}};
    for (const OperatorCount& op : r.operators) {
      rows.push_back(
          {op.domain.empty() ? op.type : fmt::format("{}:{}", op.domain, op.type), fmt::format("{}", op.count)});
    }
    out.blank();
    out.table(rows, "lr");
  }
  std::vector<std::vector<std::string>> files{{"file", "bytes"}};
  for (const FileReport& file : r.files) files.push_back({file.name, bytes_in_words(file.bytes)});
  out.blank();
  out.table(files, "lr");
  if (!r.left_out.empty()) {
    out.blank();
    out.line("  {} tensors of the checkpoint are left out: {}{}", r.left_out.size(), r.left_out.front(),
             r.left_out.size() > 1 ? ", ..." : "");
  }
  if (r.notices.empty()) return;
  out.blank();
  for (const std::string& notice : r.notices) out.line("  note: {}", notice);
}

}  // namespace

std::string to_text(const InspectReport& report) {
  Lines out;
  add_model(out, report);
  add_parts(out, report);
  add_state(out, report);
  add_tensors(out, report);
  add_lists(out, report);
  return out.take();
}

}  // namespace sluice
