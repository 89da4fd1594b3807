#include "tests/support/naive_paged_attention.h"

#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace sluice {
namespace {

struct Kernel {
  Kernel(const OrtApi&, const OrtKernelInfo* raw) {
    const Ort::ConstKernelInfo info{raw};
    heads = info.GetAttribute<std::int64_t>("num_heads");
    kv_heads = info.GetAttribute<std::int64_t>("kv_num_heads");
  }

  // Inputs: query [tokens, heads * dim], key, value [tokens, kv_heads * dim], caches [blocks, block_size, kv_heads,
  // dim], cumulative lengths [rows + 1], past lengths [rows], block table [rows, pages].
  void Compute(OrtKernelContext* raw) {
    Ort::KernelContext context{raw};
    const auto floats = [&](std::size_t i) { return context.GetInput(i).GetTensorData<float>(); };
    const auto ints = [&](std::size_t i) { return context.GetInput(i).GetTensorData<std::int32_t>(); };
    const auto shape = [&](std::size_t i) { return context.GetInput(i).GetTensorTypeAndShapeInfo().GetShape(); };
    const auto cache_shape = shape(3);
    const std::int64_t block_size = cache_shape[1], dim = cache_shape[3], width = kv_heads * dim;
    const std::int64_t pages = shape(7)[1], rows = shape(6)[0];
    float* out = context.GetOutput(0, shape(0)).GetTensorMutableData<float>();
    const float* new_kv[2] = {floats(1), floats(2)};
    float* cache[2];
    for (std::size_t i = 0; i < 2; ++i) {
      cache[i] = context.GetOutput(i + 1, cache_shape).GetTensorMutableData<float>();
      const float* before = floats(3 + i);
      if (cache[i] != before) std::copy_n(before, cache_shape[0] * block_size * width, cache[i]);
    }
    for (std::int64_t row = 0; row < rows; ++row) {
      // Where position p of this row lies in a cache.
      const auto slot = [&](std::int64_t p) {
        return (ints(7)[row * pages + p / block_size] * block_size + p % block_size) * width;
      };
      for (std::int64_t t = ints(5)[row]; t < ints(5)[row + 1]; ++t) {
        const std::int64_t position = ints(6)[row] + t - ints(5)[row];
        for (int i = 0; i < 2; ++i) std::copy_n(new_kv[i] + t * width, width, cache[i] + slot(position));
        for (std::int64_t h = 0; h < heads; ++h) {
          const std::int64_t kv = h / (heads / kv_heads) * dim;
          attend(
              floats(0) + (t * heads + h) * dim, dim, position + 1,
              [&](int which, std::int64_t p) { return cache[which] + slot(p) + kv; }, out + (t * heads + h) * dim);
        }
      }
    }
  }

  template <typename At>  // at(0, p): the key of position p, at(1, p): its value
  static void attend(const float* q, std::int64_t dim, std::int64_t visible, At at, float* out) {
    std::vector<double> weight(static_cast<std::size_t>(visible));
    for (std::int64_t p = 0; p < visible; ++p) {
      double sum = 0;
      for (std::int64_t d = 0; d < dim; ++d) sum += static_cast<double>(q[d]) * static_cast<double>(at(0, p)[d]);
      weight[static_cast<std::size_t>(p)] = sum / std::sqrt(static_cast<double>(dim));
    }
    const double largest = *std::max_element(weight.begin(), weight.end());
    double total = 0;
    for (double& w : weight) total += w = std::exp(w - largest);
    for (std::int64_t d = 0; d < dim; ++d) {
      double sum = 0;
      for (std::int64_t p = 0; p < visible; ++p) {
        sum += weight[static_cast<std::size_t>(p)] * static_cast<double>(at(1, p)[d]);
      }
      out[d] = static_cast<float>(sum / total);
    }
  }

  std::int64_t heads = 0, kv_heads = 0;
};

struct NaivePagedAttention : Ort::CustomOpBase<NaivePagedAttention, Kernel> {
  void* CreateKernel(const OrtApi& api, const OrtKernelInfo* info) const { return new Kernel(api, info); }
  const char* GetName() const { return "PagedAttention"; }
  std::size_t GetInputTypeCount() const { return 17; }
  ONNXTensorElementDataType GetInputType(std::size_t i) const {
    const bool integer = (i >= 5 && i <= 7) || i == 10 || i == 16;
    return integer ? ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32 : ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  }
  OrtCustomOpInputOutputCharacteristic GetInputCharacteristic(std::size_t i) const {
    return i < 8 ? INPUT_OUTPUT_REQUIRED : INPUT_OUTPUT_OPTIONAL;
  }
  std::size_t GetOutputTypeCount() const { return 3; }
  ONNXTensorElementDataType GetOutputType(std::size_t) const { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; }
};

}  // namespace

OrtStatus* register_naive_paged_attention(OrtSessionOptions* options, const OrtApiBase* base) {
  static const NaivePagedAttention op;
  static Ort::CustomOpDomain domain = [] {
    Ort::CustomOpDomain made{"com.microsoft"};
    made.Add(&op);
    return made;
  }();
  return base->GetApi(ORT_API_VERSION)->AddCustomOpDomain(options, domain);
}

}  // namespace sluice
