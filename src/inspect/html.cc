#include "inspect/html.h"

#include <fmt/format.h>

#include <iterator>
#include <string_view>

#include "inspect/drawings.h"
#include "inspect/page_style.h"

namespace sluice {
namespace {

// 262144 -> "262,144"
std::string grouped(std::int64_t number) {
  std::string text = fmt::format("{}", number);
  for (auto at = static_cast<std::int64_t>(text.size()) - 3; at > 0; at -= 3)
    text.insert(static_cast<std::size_t>(at), ",");
  return text;
}

class Page {
 public:
  explicit Page(const InspectReport& report) : r_(report), m_(report.model) {}

  std::string build() {
    const std::string name = r_.path.substr(r_.path.find_last_of('/', r_.path.size() > 1 ? r_.path.size() - 2 : 0) + 1);
    add("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
        "content=\"width=device-width\">");
    add("<title>{} - sluice inspect</title><style>{}</style></head><body><main>", escaped(name), kPageStyle);
    add("<header><p class=\"kind\">{}</p><h1>{}</h1><p class=\"path\">{}</p></header>",
        r_.subject == InspectReport::Subject::package ? "ONNX package" : "checkpoint", escaped(name), escaped(r_.path));
    cards();
    if (!r_.build.empty()) build_facts();
    layers();
    bytes();
    state();
    anatomy();
    tensors();
    lists();
    add("</main></body></html>\n");
    return std::move(out_);
  }

 private:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }
  void section(std::string_view title, std::string_view lead) {
    add("<section><h2>{}</h2><p class=\"lead\">{}</p>", escaped(title), escaped(lead));
  }
  void card(std::string_view value, std::string_view label) {
    add("<div class=\"card\"><b>{}</b><span>{}</span></div>", escaped(value), escaped(label));
  }
  void key(std::string_view part, std::string_view label) {
    add("<span class=\"key\"><i class=\"swatch {}\"></i>{}</span>", part, escaped(label));
  }

  void cards() {
    const PartReport total = r_.total();
    add("<div class=\"cards\">");
    card(m_.model_type, "model type");
    card(count_in_words(total.parameters),
         m_.experts > 0 ? fmt::format("parameters, {} active a token", count_in_words(total.active_parameters))
                        : "parameters");
    card(bytes_in_words(total.bytes), "of weights");
    card(bytes_in_words(total.active_bytes), "read for one token");
    card(bytes_in_words(r_.state.fixed_bytes()), "of state a sequence, whatever its length");
    card(bytes_in_words(r_.state.kv_bytes_per_token), "of KV cache a token");
    card(grouped(m_.context), "tokens of context");
    card(grouped(m_.vocab), m_.tied ? "tokens of vocabulary, tied" : "tokens of vocabulary");
    add("</div>");
  }

  void build_facts() {
    section("The build", "What the export was asked for, and what the graph therefore is.");
    add("<dl>");
    for (const auto& [name, value] : r_.build) add("<div><dt>{}</dt><dd>{}</dd></div>", escaped(name), escaped(value));
    add("</dl></section>");
  }

  void layers() {
    section(
        "The layers",
        fmt::format(
            "{} layers: {}. Each column is one layer; its foot shows the kind, its height the bytes of its weights.",
            r_.layers.size(), layers_in_words(r_)));
    add("<p class=\"keys\">");
    key("fill-linear", "linear attention (gated delta rule)");
    key("fill-attention", "full attention (gated)");
    if (r_.part(Part::mlp).bytes > 0) key("fill-mlp", "MLP");
    if (r_.part(Part::experts).bytes > 0) key("fill-experts", "experts");
    add("</p><div class=\"draw\">{}</div></section>", draw_layers(r_));
  }

  void bytes() {
    section("Where the bytes are",
            "All weights by what they are for, and below, to the same scale, what decoding one token has to read.");
    add("<div class=\"draw\">{}</div><div class=\"scroll\"><table><thead><tr><th>part</th><th "
        "class=\"n\">parameters</th><th class=\"n\">bytes</th>"
        "<th class=\"n\">share</th><th class=\"n\">read a token</th></tr></thead><tbody>",
        draw_parts(r_));
    const PartReport total = r_.total();
    for (std::size_t i = 0; i < kParts; ++i) {
      const PartReport& part = r_.parts[i];
      if (part.bytes == 0) continue;
      std::string label(label_of(static_cast<Part>(i)));
      if (static_cast<Part>(i) == Part::embedding && m_.tied) label += ", also the output projection";
      add("<tr><td><i class=\"swatch fill-{}\"></i>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td "
          "class=\"n\">{:.1f} %</td><td class=\"n\">{}</td></tr>",
          name_of(static_cast<Part>(i)), label, count_in_words(part.parameters), bytes_in_words(part.bytes),
          100 * static_cast<double>(part.bytes) / static_cast<double>(total.bytes), bytes_in_words(part.active_bytes));
    }
    add("<tr class=\"sum\"><td>all</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td></td><td "
        "class=\"n\">{}</td></tr></tbody></table></div></section>",
        count_in_words(total.parameters), bytes_in_words(total.bytes), bytes_in_words(total.active_bytes));
  }

  void state() {
    const StateReport& s = r_.state;
    section("What a sequence keeps",
            fmt::format(
                "Linear attention keeps {} of recurrent state ({}) and {} of convolution inputs ({}) however long the "
                "sequence is; full attention adds {} of KV cache ({}) with every token.",
                bytes_in_words(s.recurrent_bytes), dtype_name(s.recurrent_dtype), bytes_in_words(s.conv_bytes),
                dtype_name(s.conv_dtype), bytes_in_words(s.kv_bytes_per_token), dtype_name(s.kv_dtype)));
    add("<div class=\"draw\">{}</div></section>", draw_state(r_));
  }

  void flow(std::string_view part, std::string_view title,
            std::initializer_list<std::pair<std::string_view, std::string>> steps) {
    add("<div class=\"flow\"><h3><i class=\"swatch fill-{}\"></i>{}</h3><ol>", part, escaped(title));
    for (const auto& [what, shape] : steps)
      add("<li><span>{}</span><code>{}</code></li>", escaped(what), escaped(shape));
    add("</ol></div>");
  }

  void anatomy() {
    const std::int64_t keys = m_.linear_k_heads * m_.linear_k_dim, values = m_.linear_v_heads * m_.linear_v_dim,
                       query = m_.heads * m_.head_dim;
    section("Inside a layer", "Numbers are features a token carries from one step to the next.");
    add("<div class=\"flows\">");
    if (r_.part(Part::linear).bytes > 0) {
      flow("linear", "Linear attention",
           {{"RMS norm", fmt::format("{}", m_.hidden)},
            {"project to q, k, v", fmt::format("{} + {} + {}", keys, keys, values)},
            {"project to gate z, beta, decay",
             fmt::format("{} + {} + {}", values, m_.linear_v_heads, m_.linear_v_heads)},
            {fmt::format("causal convolution over {} tokens, SiLU", m_.conv_kernel),
             fmt::format("{}", 2 * keys + values)},
            {"gated delta rule on the state",
             fmt::format("{} heads, {} x {} each", m_.linear_v_heads, m_.linear_k_dim, m_.linear_v_dim)},
            {"RMS norm a head, times gate", fmt::format("{}", values)},
            {"project back, add", fmt::format("{}", m_.hidden)}});
    }
    if (r_.part(Part::attention).bytes > 0) {
      flow("attention", "Full attention",
           {{"RMS norm", fmt::format("{}", m_.hidden)},
            {"project to q and gate, k, v",
             fmt::format("{} + {} + {} + {}", query, query, m_.kv_heads * m_.head_dim, m_.kv_heads * m_.head_dim)},
            {"RMS norm of q and k, rotation", fmt::format("{} of {}", m_.heads, m_.head_dim)},
            {"attention over the KV cache",
             fmt::format("{} query heads a key head", m_.kv_heads > 0 ? m_.heads / m_.kv_heads : 0)},
            {"times sigmoid(gate)", fmt::format("{}", query)},
            {"project back, add", fmt::format("{}", m_.hidden)}});
    }
    if (r_.part(Part::mlp).bytes > 0) {
      flow("mlp", "MLP",
           {{"RMS norm", fmt::format("{}", m_.hidden)},
            {"gate and up projections", fmt::format("2 x {}", m_.intermediate)},
            {"activation(gate) * up", fmt::format("{}", m_.intermediate)},
            {"project back, add", fmt::format("{}", m_.hidden)}});
    }
    if (r_.part(Part::experts).bytes > 0) {
      flow("experts", "Experts",
           {{"RMS norm", fmt::format("{}", m_.hidden)},
            {"router", fmt::format("{} experts", m_.experts)},
            {"chosen experts", fmt::format("{} a token", m_.experts_per_token)},
            {"shared expert, times its gate", "always"},
            {"weighted sum, add", fmt::format("{}", m_.hidden)}});
    }
    add("</div></section>");
  }

  void tensors() {
    const bool package = r_.subject == InspectReport::Subject::package;
    section("The tensors",
            package ? "Initializers of the graph and the weight each holds; * stands for layer and expert numbers."
                    : "Tensors of the checkpoint and where each goes; * stands for layer and expert numbers.");
    add("<div class=\"scroll\"><table><thead><tr><th>tensor</th><th>dtype</th><th>shape</th><th "
        "class=\"n\">count</th><th class=\"n\">bytes</th><th>goes to</th></tr></thead><tbody>");
    for (const TensorGroup& g : group_tensors(r_)) {
      add("<tr{}><td><i class=\"swatch {}\"></i><code>{}</code></td><td>{}</td><td>{}</td><td class=\"n\">{}</td><td "
          "class=\"n\">{}</td><td>{}</td></tr>",
          g.used ? "" : " class=\"off\"", g.used ? fmt::format("fill-{}", name_of(g.part)) : "fill-none",
          escaped(g.name), dtype_name(g.dtype), to_string(g.shape), g.count, bytes_in_words(g.bytes),
          g.used ? escaped(g.use) : "left out: " + escaped(g.use));
    }
    add("</tbody></table></div></section>");
  }

  void lists() {
    if (!r_.operators.empty()) {
      section("The operators", "Nodes of the graph by type.");
      add("<p class=\"pills\">");
      for (const OperatorCount& op : r_.operators) {
        add("<span class=\"pill\">{}<b>{}</b></span>", escaped(op.domain.empty() ? op.type : op.domain + ":" + op.type),
            op.count);
      }
      add("</p></section>");
    }
    section("The files", "");
    add("<div class=\"scroll\"><table><tbody>");
    for (const FileReport& file : r_.files)
      add("<tr><td><code>{}</code></td><td class=\"n\">{}</td></tr>", escaped(file.name), bytes_in_words(file.bytes));
    add("</tbody></table></div></section>");
    if (!r_.left_out.empty()) {
      section("Left out",
              fmt::format("{} tensors of the checkpoint that the package does not hold.", r_.left_out.size()));
      add("<details><summary>names</summary><ul>");
      for (const std::string& name : r_.left_out) add("<li><code>{}</code></li>", escaped(name));
      add("</ul></details></section>");
    }
    if (r_.notices.empty()) return;
    section("To know", "");
    add("<ul>");
    for (const std::string& notice : r_.notices) add("<li>{}</li>", escaped(notice));
    add("</ul></section>");
  }

  const InspectReport& r_;
  const ModelFacts& m_;
  std::string out_;
};

}  // namespace

std::string to_html(const InspectReport& report) { return Page(report).build(); }

}  // namespace sluice
