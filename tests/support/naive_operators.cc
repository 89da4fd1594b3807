#include "tests/support/naive_operators.h"

#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "base/float16.h"

namespace sluice {
namespace {

template <typename T>
std::vector<double> widened(const void* data, std::size_t count) {
  std::vector<double> out(count);
  std::transform(static_cast<const T*>(data), static_cast<const T*>(data) + count, out.begin(),
                 [](T value) { return static_cast<double>(to_f32(value)); });
  return out;
}

// All values of an f32, f16 or bf16 tensor.
std::vector<double> values_of(const Ort::ConstValue& tensor) {
  const auto info = tensor.GetTensorTypeAndShapeInfo();
  const void* data = tensor.GetTensorRawData();
  switch (info.GetElementType()) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
      return widened<float>(data, info.GetElementCount());
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
      return widened<f16>(data, info.GetElementCount());
    default:
      return widened<bf16>(data, info.GetElementCount());
  }
}

std::vector<std::int64_t> shape_of(const Ort::ConstValue& tensor) {
  return tensor.GetTensorTypeAndShapeInfo().GetShape();
}

double silu(double x) { return x / (1 + std::exp(-x)); }

// sum over i of a[i] * b[i]
double dot(const double* a, const double* b, std::int64_t n) { return std::inner_product(a, a + n, b, 0.0); }

template <typename T>
struct PagedAttentionKernel {
  PagedAttentionKernel(const OrtApi&, const OrtKernelInfo* raw) {
    const Ort::ConstKernelInfo info{raw};
    heads = info.GetAttribute<std::int64_t>("num_heads");
    kv_heads = info.GetAttribute<std::int64_t>("kv_num_heads");
  }

  // Inputs: query [tokens, heads * dim], key, value [tokens, kv_heads * dim], caches [blocks, block_size, kv_heads, dim],
  // cumulative lengths [rows + 1], past lengths [rows], block table [rows, pages].
  void Compute(OrtKernelContext* raw) {
    Ort::KernelContext context{raw};
    const auto ints = [&](std::size_t i) { return context.GetInput(i).GetTensorData<std::int32_t>(); };
    const std::int32_t *offsets = ints(5), *past = ints(6), *table = ints(7);
    const auto cache_shape = shape_of(context.GetInput(3));
    const std::int64_t block_size = cache_shape[1], dim = cache_shape[3], width = kv_heads * dim;
    const std::int64_t rows = shape_of(context.GetInput(6))[0], pages = shape_of(context.GetInput(7))[1];
    const std::vector<double> q = values_of(context.GetInput(0));
    T* out = static_cast<T*>(context.GetOutput(0, shape_of(context.GetInput(0))).GetTensorMutableRawData());
    T* cache[2];
    for (std::size_t i = 0; i < 2; ++i) {
      const std::size_t bytes = static_cast<std::size_t>(cache_shape[0] * block_size * width) * sizeof(T);
      cache[i] = static_cast<T*>(context.GetOutput(i + 1, cache_shape).GetTensorMutableRawData());
      std::memmove(cache[i], context.GetInput(3 + i).GetTensorRawData(), bytes);
    }
    for (std::int64_t row = 0; row < rows; ++row) {
      // Where position p of this row lies in a cache.
      const auto slot = [&](std::int64_t p) {
        return (table[row * pages + p / block_size] * block_size + p % block_size) * width;
      };
      for (std::int64_t t = offsets[row]; t < offsets[row + 1]; ++t) {
        const std::int64_t position = past[row] + t - offsets[row];
        for (std::size_t i = 0; i < 2; ++i) {
          const T* fresh = static_cast<const T*>(context.GetInput(1 + i).GetTensorRawData());
          std::copy_n(fresh + t * width, width, cache[i] + slot(position));
        }
        for (std::int64_t h = 0; h < heads; ++h) {
          const std::int64_t kv = h / (heads / kv_heads) * dim;
          const auto at = [&](int which, std::int64_t p, std::int64_t d) {
            return static_cast<double>(to_f32(cache[which][slot(p) + kv + d]));
          };
          attend(q.data() + (t * heads + h) * dim, dim, position + 1, at, out + (t * heads + h) * dim);
        }
      }
    }
  }

  template <typename At>  // at(0, p, d): key of position p, at(1, p, d): its value
  static void attend(const double* q, std::int64_t dim, std::int64_t visible, At at, T* out) {
    std::vector<double> weight(static_cast<std::size_t>(visible));
    for (std::int64_t p = 0; p < visible; ++p) {
      double sum = 0;
      for (std::int64_t d = 0; d < dim; ++d) sum += q[d] * at(0, p, d);
      weight[static_cast<std::size_t>(p)] = sum / std::sqrt(static_cast<double>(dim));
    }
    const double largest = *std::max_element(weight.begin(), weight.end());
    double total = 0;
    for (double& w : weight) total += w = std::exp(w - largest);
    for (std::int64_t d = 0; d < dim; ++d) {
      double sum = 0;
      for (std::int64_t p = 0; p < visible; ++p) sum += weight[static_cast<std::size_t>(p)] * at(1, p, d);
      out[d] = from_f32<T>(static_cast<float>(sum / total));
    }
  }

  std::int64_t heads = 0, kv_heads = 0;
};

template <typename T>
struct PagedAttention : Ort::CustomOpBase<PagedAttention<T>, PagedAttentionKernel<T>> {
  static constexpr ONNXTensorElementDataType kType =
      sizeof(T) == 4 ? ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT : ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
  void* CreateKernel(const OrtApi& api, const OrtKernelInfo* info) const {
    return new PagedAttentionKernel<T>(api, info);
  }
  const char* GetName() const { return "PagedAttention"; }
  std::size_t GetInputTypeCount() const { return 17; }
  ONNXTensorElementDataType GetInputType(std::size_t i) const {
    const bool integer = (i >= 5 && i <= 7) || i == 10 || i == 16;
    return integer ? ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32 : kType;
  }
  OrtCustomOpInputOutputCharacteristic GetInputCharacteristic(std::size_t i) const {
    return i < 8 ? INPUT_OUTPUT_REQUIRED : INPUT_OUTPUT_OPTIONAL;
  }
  std::size_t GetOutputTypeCount() const { return 3; }
  ONNXTensorElementDataType GetOutputType(std::size_t) const { return kType; }
};

struct LinearKernel {
  // x [.., in], weight [out, in], bias [out] optional -> [.., out]
  void Compute(OrtKernelContext* raw) {
    Ort::KernelContext context{raw};
    const std::vector<double> x = values_of(context.GetInput(0)), w = values_of(context.GetInput(1));
    auto shape = shape_of(context.GetInput(0));
    const std::int64_t in = shape.back(), rows = static_cast<std::int64_t>(x.size()) / in;
    const std::int64_t outputs = shape.back() = shape_of(context.GetInput(1))[0];
    const bool biased = context.GetInputCount() > 2 && context.GetInput(2);
    const std::vector<double> bias =
        biased ? values_of(context.GetInput(2)) : std::vector<double>(static_cast<std::size_t>(outputs));
    float* y = context.GetOutput(0, shape).GetTensorMutableData<float>();
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t o = 0; o < outputs; ++o) {
        y[r * outputs + o] =
            static_cast<float>(dot(x.data() + r * in, w.data() + o * in, in) + bias[static_cast<std::size_t>(o)]);
      }
    }
  }
};

struct MoeKernel {
  MoeKernel(const OrtApi&, const OrtKernelInfo* raw) {
    const Ort::ConstKernelInfo info{raw};
    k = info.GetAttribute<std::int64_t>("k");
    normalize = info.GetAttribute<std::int64_t>("normalize") != 0;
    gelu = info.GetAttribute<std::string>("activation") == "gelu_tanh";
  }

  // x [tokens, hidden], router logits [tokens, experts], gate_up [experts, 2 * inner, hidden] or gate with up apart
  // (input 4), down [experts, hidden, inner] -> [tokens, hidden]
  void Compute(OrtKernelContext* raw) {
    Ort::KernelContext context{raw};
    const std::vector<double> x = values_of(context.GetInput(0)), logits = values_of(context.GetInput(1));
    const std::vector<double> first = values_of(context.GetInput(2)), down = values_of(context.GetInput(3));
    const auto down_shape = shape_of(context.GetInput(3));
    experts = down_shape[0], hidden = down_shape[1], inner = down_shape[2];
    const bool apart = context.GetInputCount() > 4 && context.GetInput(4);
    const std::vector<double> second = apart ? values_of(context.GetInput(4)) : std::vector<double>();
    const std::int64_t tokens = static_cast<std::int64_t>(x.size()) / hidden;
    float* y = context.GetOutput(0, shape_of(context.GetInput(0))).GetTensorMutableData<float>();
    for (std::int64_t t = 0; t < tokens; ++t) {
      std::vector<double> sum(static_cast<std::size_t>(hidden));
      for (const auto& [expert, weight] : route(logits.data() + t * experts)) {
        const std::int64_t size = inner * hidden;
        const double* gate = first.data() + expert * (apart ? size : 2 * size);
        const double* up = apart ? second.data() + expert * size : gate + size;
        std::vector<double> h(static_cast<std::size_t>(inner));
        for (std::int64_t i = 0; i < inner; ++i) {
          const double* token = x.data() + t * hidden;
          h[static_cast<std::size_t>(i)] =
              activate(dot(gate + i * hidden, token, hidden)) * dot(up + i * hidden, token, hidden);
        }
        for (std::int64_t o = 0; o < hidden; ++o) {
          sum[static_cast<std::size_t>(o)] += weight * dot(down.data() + expert * size + o * inner, h.data(), inner);
        }
      }
      std::transform(sum.begin(), sum.end(), y + t * hidden, [](double v) { return static_cast<float>(v); });
    }
  }

  double activate(double v) const {
    return gelu ? 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v))) : silu(v);
  }

  std::vector<std::pair<std::int64_t, double>> route(const double* logits) const {
    std::vector<std::int64_t> order(static_cast<std::size_t>(experts));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) { return logits[a] > logits[b]; });
    double all = 0, chosen = 0;
    for (std::int64_t e = 0; e < experts; ++e) all += std::exp(logits[e] - logits[order[0]]);
    std::vector<std::pair<std::int64_t, double>> out;
    for (std::int64_t rank = 0; rank < k; ++rank) {
      const std::int64_t expert = order[static_cast<std::size_t>(rank)];
      out.emplace_back(expert, std::exp(logits[expert] - logits[order[0]]) / all);
      chosen += out.back().second;
    }
    if (normalize) {
      for (auto& [expert, weight] : out) weight /= chosen;
    }
    return out;
  }

  std::int64_t k = 0, experts = 0, hidden = 0, inner = 0;
  bool normalize = true, gelu = false;
};

// Weights of any dtype: inputs from `first_weight` on are untyped where they are weights.
template <typename Op, typename Kernel>
struct SluiceOp : Ort::CustomOpBase<Op, Kernel> {
  std::size_t GetOutputTypeCount() const { return 1; }
  ONNXTensorElementDataType GetOutputType(std::size_t) const { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; }
  ONNXTensorElementDataType GetInputType(std::size_t) const { return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED; }
};

struct Linear : SluiceOp<Linear, LinearKernel> {
  void* CreateKernel(const OrtApi&, const OrtKernelInfo*) const { return new LinearKernel(); }
  const char* GetName() const { return "Linear"; }
  std::size_t GetInputTypeCount() const { return 3; }
  OrtCustomOpInputOutputCharacteristic GetInputCharacteristic(std::size_t i) const {
    return i < 2 ? INPUT_OUTPUT_REQUIRED : INPUT_OUTPUT_OPTIONAL;
  }
};

struct Moe : SluiceOp<Moe, MoeKernel> {
  void* CreateKernel(const OrtApi& api, const OrtKernelInfo* info) const { return new MoeKernel(api, info); }
  const char* GetName() const { return "MoE"; }
  std::size_t GetInputTypeCount() const { return 5; }
  OrtCustomOpInputOutputCharacteristic GetInputCharacteristic(std::size_t i) const {
    return i < 4 ? INPUT_OUTPUT_REQUIRED : INPUT_OUTPUT_OPTIONAL;
  }
};

}  // namespace

OrtStatus* register_naive_operators(OrtSessionOptions* options, const OrtApiBase* base) {
  static const PagedAttention<float> attention_f32;
  static const PagedAttention<f16> attention_f16;
  static const Linear linear;
  static const Moe moe;
  static const auto domain = [](const char* name, std::initializer_list<const OrtCustomOp*> ops) {
    Ort::CustomOpDomain made{name};
    for (const OrtCustomOp* op : ops) made.Add(op);
    return made;
  };
  static const Ort::CustomOpDomain microsoft = domain("com.microsoft", {&attention_f32, &attention_f16});
  static const Ort::CustomOpDomain own = domain("sluice", {&linear, &moe});
  const OrtApi* api = base->GetApi(ORT_API_VERSION);
  if (OrtStatus* status = api->AddCustomOpDomain(options, microsoft); status != nullptr) return status;
  return api->AddCustomOpDomain(options, own);
}

}  // namespace sluice
