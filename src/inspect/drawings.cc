#include "inspect/drawings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

namespace sluice {
namespace {

// An <svg> element under construction; coordinates in its view box.
class Svg {
 public:
  Svg(double width, double height, std::string_view label) {
    add(R"(<svg viewBox="0 0 {:g} {:g}" role="img" aria-label="{}">)", width, height, escaped(label));
  }
  void rect(double x, double y, double width, double height, std::string_view classes, std::string_view title = {}) {
    add(R"(<rect x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}" class="{}">{}</rect>)", x, y,
        std::max(width, 0.0), std::max(height, 0.0), classes,
        title.empty() ? "" : fmt::format("<title>{}</title>", escaped(title)));
  }
  void line(double x1, double y1, double x2, double y2, std::string_view classes) {
    add(R"(<line x1="{:.2f}" y1="{:.2f}" x2="{:.2f}" y2="{:.2f}" class="{}"/>)", x1, y1, x2, y2, classes);
  }
  void text(double x, double y, std::string_view classes, std::string_view content) {
    add(R"(<text x="{:.2f}" y="{:.2f}" class="{}">{}</text>)", x, y, classes, escaped(content));
  }
  void polyline(const std::vector<std::pair<double, double>>& points, std::string_view classes) {
    std::string list;
    for (const auto& [x, y] : points) list += fmt::format("{:.2f},{:.2f} ", x, y);
    add(R"(<polyline points="{}" class="{}"/>)", list, classes);
  }
  void circle(double x, double y, double radius, std::string_view classes) {
    add(R"(<circle cx="{:.2f}" cy="{:.2f}" r="{:g}" class="{}"/>)", x, y, radius, classes);
  }
  std::string take() { return out_ + "</svg>"; }

 private:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }
  std::string out_;
};

// A logarithmic axis from `least` to `most`, both above 0.
struct LogAxis {
  double least = 1, most = 10, from = 0, to = 1;
  double at(double value) const {
    return from + (to - from) * (std::log(value) - std::log(least)) / (std::log(most) - std::log(least));
  }
};

// A round number of at least `value`.
double round_up(double value) {
  const double power = std::pow(10, std::floor(std::log10(std::max(value, 1.0))));
  for (const double digit : {1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0}) {
    if (digit * power >= value) return digit * power;
  }
  return 10 * power;
}

std::string tokens_in_words(double tokens) {
  const auto count = static_cast<std::uint64_t>(tokens);
  if (count >= 1024 && count % 1024 == 0) return fmt::format("{}k", count / 1024);
  return fmt::format("{}", count);
}

constexpr double kWidth = 1040;

// A line of the state drawing: bytes over tokens, and what its end is called.
struct Curve {
  double fixed = 0, a_token = 0;
  const char* classes;
  std::string label;
  double bytes(double tokens) const { return fixed + a_token * tokens; }
};

std::vector<Curve> curves_of(const InspectReport& report) {
  const StateReport& s = report.state;
  const double context = static_cast<double>(report.model.context);
  const auto named = [&](const char* what, double bytes) {
    return fmt::format("{} {}", what, bytes_in_words(static_cast<std::uint64_t>(bytes)));
  };
  const auto full =
      static_cast<double>(std::count_if(report.layers.begin(), report.layers.end(),
                                        [](const LayerReport& l) { return l.kind == LayerKind::full_attention; }));
  const double kv = static_cast<double>(s.kv_bytes_per_token), fixed = static_cast<double>(s.fixed_bytes());
  std::vector<Curve> curves;
  if (full > 0 && fixed > 0) {
    const double all = kv / full * static_cast<double>(report.layers.size());
    curves.push_back({0, all, "curve ghost", named("were all layers full:", all * context)});
  }
  if (kv > 0) curves.push_back({0, kv, "curve kv", named("KV cache", kv * context)});
  if (fixed > 0) curves.push_back({fixed, 0, "curve state", named("fixed state", fixed)});
  return curves;
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        if (static_cast<unsigned char>(c) >= 0x20) out += c;
    }
  }
  return out;
}

std::string draw_layers(const InspectReport& report) {
  constexpr double kTop = 26, kBars = 190, kStrip = 20, kLeft = 62;
  Svg svg(kWidth, kTop + kBars + kStrip + 34, "Layers: kind and bytes");
  std::uint64_t most = 1;
  for (const LayerReport& layer : report.layers) most = std::max(most, layer.mixer_bytes + layer.mlp_bytes);
  const double scale = round_up(static_cast<double>(most)), foot = kTop + kBars;
  for (int i = 0; i <= 2; ++i) {
    const double y = foot - kBars * i / 2;
    svg.line(kLeft, y, kWidth, y, "grid");
    svg.text(kLeft - 8, y + 4, "tick end", bytes_in_words(static_cast<std::uint64_t>(scale * i / 2)));
  }
  const double step = (kWidth - kLeft) / static_cast<double>(std::max<std::size_t>(report.layers.size(), 1));
  const double wide = std::min(step * 0.82, 64.0), gap = (step - wide) / 2;
  for (std::size_t i = 0; i < report.layers.size(); ++i) {
    const LayerReport& layer = report.layers[i];
    const bool full = layer.kind == LayerKind::full_attention;
    const double x = kLeft + step * static_cast<double>(i) + gap;
    const double mixer = kBars * static_cast<double>(layer.mixer_bytes) / scale,
                 mlp = kBars * static_cast<double>(layer.mlp_bytes) / scale;
    const std::string title =
        fmt::format("layer {}: {} attention {}, {} {}", i, full ? "full" : "linear", bytes_in_words(layer.mixer_bytes),
                    layer.experts ? "experts" : "MLP", bytes_in_words(layer.mlp_bytes));
    svg.rect(x, foot - mixer, wide, mixer, full ? "fill-attention" : "fill-linear", title);
    svg.rect(x, foot - mixer - mlp, wide, mlp, layer.experts ? "fill-experts" : "fill-mlp", title);
    svg.rect(x, foot + 5, wide, kStrip, full ? "fill-attention" : "fill-linear", title);
    const std::size_t every = report.layers.size() > 40 ? 4 : report.layers.size() > 20 ? 2 : 1;
    if (i % every == 0 || i + 1 == report.layers.size())
      svg.text(x + wide / 2, foot + kStrip + 22, "tick middle", fmt::format("{}", i));
  }
  return svg.take();
}

std::string draw_parts(const InspectReport& report) {
  constexpr double kBar = 34, kStep = kBar + 20, kLeft = 120;
  const PartReport total = report.total();
  const auto stored = [](const PartReport& part) { return part.bytes; };
  const auto active = [](const PartReport& part) { return part.active_bytes; };
  const bool enlarge = total.active_bytes * 5 < total.bytes * 2;  // too small to tell its parts apart
  Svg svg(kWidth, 4 + kStep * (enlarge ? 3 : 2), "Weights by part");
  const double room = kWidth - kLeft, scale = room / std::max(static_cast<double>(total.bytes), 1.0);
  const auto bar = [&](int row, std::string_view label, std::uint64_t all, double a_byte, auto bytes_of) {
    const double y = 4 + kStep * row, baseline = y + kBar / 2 + 5;
    svg.text(kLeft - 12, baseline, "label end", label);
    double x = kLeft;
    for (std::size_t i = 0; i < kParts; ++i) {
      const std::uint64_t bytes = bytes_of(report.parts[i]);
      if (bytes == 0) continue;
      const double width = static_cast<double>(bytes) * a_byte;
      const std::string_view name = label_of(static_cast<Part>(i));
      svg.rect(x, y, width, kBar, fmt::format("fill-{} seam", name_of(static_cast<Part>(i))),
               fmt::format("{}: {}", name, bytes_in_words(bytes)));
      if (width > 8.5 * static_cast<double>(name.size()) + 12) svg.text(x + width / 2, baseline, "inside middle", name);
      x += width;
    }
    if (x < kWidth - 90) svg.text(x + 10, baseline, "label", bytes_in_words(all));
  };
  bar(0, "stored", total.bytes, scale, stored);
  bar(1, "read a token", total.active_bytes, scale, active);
  if (enlarge)
    bar(2, "enlarged", total.active_bytes, room / std::max(static_cast<double>(total.active_bytes), 1.0), active);
  return svg.take();
}

std::string draw_state(const InspectReport& report) {
  constexpr double kHeight = 330, kTop = 14, kFoot = 290, kLeft = 66, kRight = 790;
  Svg svg(kWidth, kHeight, "Bytes a sequence keeps over its length");
  const std::vector<Curve> curves = curves_of(report);
  const double context = std::max<double>(static_cast<double>(report.model.context), 2);
  double least = 1e300, most = 1;
  for (const Curve& curve : curves) {
    least = std::min(least, curve.bytes(1));
    most = std::max(most, curve.bytes(context));
  }
  if (curves.empty()) least = 1;
  least = std::pow(10, std::floor(std::log10(std::max(least, 1.0))));
  const LogAxis x{1, context, kLeft, kRight}, y{least, round_up(most) * 1.2, kFoot, kTop};
  for (double bytes = least; bytes <= y.most; bytes *= 10) {
    svg.line(kLeft, y.at(bytes), kRight, y.at(bytes), "grid");
    svg.text(kLeft - 8, y.at(bytes) + 4, "tick end", bytes_in_words(static_cast<std::uint64_t>(bytes)));
  }
  for (double tokens = 1; tokens < context * 0.2; tokens *= 16) {
    svg.line(x.at(tokens), kTop, x.at(tokens), kFoot, "grid");
    svg.text(x.at(tokens), kFoot + 18, "tick middle", tokens_in_words(tokens));
  }
  svg.text(kRight, kFoot + 18, "tick end", tokens_in_words(context) + " tokens");
  double last_label = -1e9;
  for (const Curve& curve : curves) {
    std::vector<std::pair<double, double>> points;
    for (int i = 0; i <= 64; ++i) {
      const double tokens = std::pow(context, i / 64.0);
      points.emplace_back(x.at(tokens), y.at(curve.bytes(tokens)));
    }
    svg.polyline(points, curve.classes);
    const double at = std::max(points.back().second + 4, last_label + 18);  // labels never cover each other
    last_label = at;
    svg.text(kRight + 10, at, "label", curve.label);
  }
  const auto tokens = static_cast<double>(crossover_tokens(report.state));
  if (tokens >= 1 && tokens <= context) {
    const double bytes = static_cast<double>(report.state.fixed_bytes());
    svg.circle(x.at(tokens), y.at(bytes), 5, "mark");
    svg.line(x.at(tokens), y.at(bytes), x.at(tokens), kFoot, "drop");
    svg.text(x.at(tokens) + 8, kFoot - 10, "label",
             fmt::format("the cache outgrows the state at {:.0f} tokens", tokens));
  }
  return svg.take();
}

}  // namespace sluice
