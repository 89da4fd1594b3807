// Makes a synthetic checkpoint of a published geometry, for benchmarks: right names, shapes and dtypes, random weights
// of a trained model's scale. Same arguments, same bytes.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "architecture/read_config.h"
#include "architecture/weight_table.h"
#include "base/error.h"
#include "base/executor.h"
#include "base/float16.h"
#include "base/json.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

struct Geometry {
  const char* name;
  std::int64_t layers, hidden, intermediate, heads, kv_heads, linear_k_heads, linear_v_heads;
  bool tied;
};

// Sizes of the published models (head_dim 256, linear head dims 128, convolution 4, vocabulary 248320).
constexpr Geometry kGeometries[] = {
    {"0.8b", 24, 1024, 3584, 8, 2, 16, 16, true},
    {"4b", 32, 2560, 9216, 16, 4, 16, 32, true},
    {"9b", 32, 4096, 12288, 16, 4, 16, 32, false},
    {"27b", 64, 5120, 17408, 24, 4, 16, 48, false},
};

Json config_of(const Geometry& g, std::int64_t vocab) {
  Json rope;
  rope.set("rope_type", "default").set("rope_theta", 10000000).set("partial_rotary_factor", 0.25);
  rope.set("mrope_section", Json::array(std::vector<std::int64_t>{11, 11, 10})).set("mrope_interleaved", true);
  Json out;
  out.set("architectures", Json::array(std::vector<const char*>{"Qwen3_5ForCausalLM"}))
      .set("model_type", "qwen3_5_text");
  out.set("dtype", "bfloat16").set("hidden_size", g.hidden).set("intermediate_size", g.intermediate);
  out.set("num_hidden_layers", g.layers).set("num_attention_heads", g.heads).set("num_key_value_heads", g.kv_heads);
  out.set("head_dim", 256)
      .set("linear_num_key_heads", g.linear_k_heads)
      .set("linear_num_value_heads", g.linear_v_heads);
  out.set("linear_key_head_dim", 128).set("linear_value_head_dim", 128).set("linear_conv_kernel_dim", 4);
  out.set("full_attention_interval", 4).set("vocab_size", vocab).set("max_position_embeddings", 262144);
  out.set("rms_norm_eps", 1e-6).set("hidden_act", "silu").set("attention_bias", false).set("attn_output_gate", true);
  out.set("tie_word_embeddings", g.tied).set("rope_parameters", std::move(rope)).set("eos_token_id", vocab - 1);
  return out;
}

// splitmix64: a value from a counter, so that any piece can be made on any thread.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Four values a draw, uniform in [low, high].
void fill_uniform(std::uint64_t seed, float low, float high, std::span<bf16> out) {
  const float step = (high - low) / 65535.0f;
  for (std::size_t i = 0; i < out.size(); i += 4) {
    const std::uint64_t bits = mix(seed + i);
    for (std::size_t j = 0; j < 4 && i + j < out.size(); ++j) {
      out[i + j] = to_bf16(low + step * static_cast<float>(bits >> (16 * j) & 0xffffu));
    }
  }
}

struct Range {
  float low, high;
};

// Of a trained model's size: matrices keep the variance of their input, norms stay near neutral, decays spread.
Range range_of(const std::string& name, const Shape& shape) {
  if (name.ends_with("A_log")) return {0.0f, 2.7f};
  if (name.ends_with("dt_bias")) return {-4.0f, -1.0f};
  if (name.ends_with("linear_attn.norm.weight")) return {0.8f, 1.2f};
  if (shape.size() == 1) return {-0.1f, 0.1f};
  const float fan_in = static_cast<float>(shape.back());
  const float bound = name.find("embed_tokens") != std::string::npos ? 0.05f : std::sqrt(3.0f / fan_in);
  return {-bound, bound};
}

struct Tensor {
  std::string name;
  Shape shape;
  std::uint64_t offset, bytes;
};

std::vector<Tensor> tensors_of(const HybridConfig& config, const std::string& prefix) {
  std::vector<Tensor> out;
  std::uint64_t offset = 0;
  for (const WeightSpec& weight : weight_table(config)) {
    for (const SourceTensor& source : weight.forms.front().sources) {
      const std::uint64_t bytes = byte_count(source.shape, DType::bf16).value();
      const std::string name = source.name == "lm_head.weight" ? source.name : prefix + source.name;
      out.push_back({name, source.shape, offset, bytes});
      offset += bytes;
    }
  }
  return out;
}

std::string header_of(const std::vector<Tensor>& tensors) {
  Json header;
  for (const Tensor& t : tensors) {
    Json row;
    row.set("dtype", "BF16").set("shape", Json::array(t.shape));
    row.set("data_offsets", Json::array(std::vector<std::uint64_t>{t.offset, t.offset + t.bytes}));
    header.set(t.name, std::move(row));
  }
  std::string text = header.dump(-1);
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

void write_at(int file, const void* data, std::uint64_t bytes, std::uint64_t offset) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t count = ::pwrite(file, at, bytes, static_cast<off_t>(offset));
    if (count <= 0) fail("the checkpoint cannot be written: {}", std::strerror(errno));
    at += count;
    bytes -= static_cast<std::uint64_t>(count);
    offset += static_cast<std::uint64_t>(count);
  }
}

void write_checkpoint(const Geometry& geometry, std::int64_t vocab, const fs::path& folder, bool sparse) {
  fs::create_directories(folder);
  const Json json = config_of(geometry, vocab);
  std::ofstream(folder / "config.json") << json.dump() << '\n';
  const std::vector<Tensor> tensors = tensors_of(config_from_json(json, "config.json"), "model.");
  const std::string header = header_of(tensors);
  const std::uint64_t length = header.size();
  const int file = ::open((folder / "model.safetensors").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  if (file < 0) fail("{}: cannot be written", folder.string());
  write_at(file, &length, sizeof length, 0);
  write_at(file, header.data(), header.size(), sizeof length);
  const std::uint64_t base = sizeof length + header.size();
  const std::uint64_t end = base + tensors.back().offset + tensors.back().bytes;
  if (::ftruncate(file, static_cast<off_t>(end)) != 0) fail("{}: cannot be sized to {} bytes", folder.string(), end);
  ThreadPool pool(static_cast<int>(std::thread::hardware_concurrency()));
  parallel_for(pool, sparse ? 0 : static_cast<std::int64_t>(tensors.size()), [&](std::int64_t index) noexcept {
    const Tensor& t = tensors[static_cast<std::size_t>(index)];
    const Range range = range_of(t.name, t.shape);
    std::vector<bf16> piece(1u << 20);
    for (std::uint64_t at = 0; at < t.bytes / 2; at += piece.size()) {
      const std::uint64_t count = std::min<std::uint64_t>(piece.size(), t.bytes / 2 - at);
      fill_uniform(mix(static_cast<std::uint64_t>(index)) + at, range.low, range.high, std::span(piece).first(count));
      write_at(file, piece.data(), count * 2, base + t.offset + at * 2);
    }
  });
  ::close(file);
  fmt::print("{}: {} tensors, {} bytes{}\n", folder.string(), tensors.size(), end, sparse ? ", sparse" : "");
}

int run(int argc, char** argv) {
  CLI::App app("Makes a synthetic checkpoint of a published geometry");
  std::string geometry = "0.8b", folder;
  std::int64_t vocab = 248320;
  bool sparse = false;
  app.add_option("--geometry", geometry, "0.8b | 4b | 9b | 27b")->capture_default_str();
  app.add_option("--vocab", vocab, "Rows of the embedding")->capture_default_str();
  app.add_flag("--sparse", sparse, "Sizes alone: a sparse file of zeros");
  app.add_option("FOLDER", folder, "Folder to write")->required();
  CLI11_PARSE(app, argc, argv);
  for (const Geometry& g : kGeometries) {
    if (geometry == g.name) {
      write_checkpoint(g, vocab, folder, sparse);
      return 0;
    }
  }
  fail("--geometry {}: not one of 0.8b, 4b, 9b, 27b", geometry);
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  try {
    return sluice::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "make_checkpoint: {}\n", error.what());
    return 3;
  }
}
