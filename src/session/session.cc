#include "session/session.h"

#include <algorithm>
#include <map>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/onnx_type.h"
#include "session/ort.h"

namespace sluice {
namespace {

struct Port {  // what may be bound under a name
  DType dtype = DType::f32;
  std::vector<Extent> shape;
};
using Ports = std::map<std::string, Port, std::less<>>;

std::string describe(std::span<const Extent> shape) {
  std::string text = "[";
  for (const Extent& extent : shape) {
    if (text.size() > 1) text += ", ";
    text += extent.value >= 0 ? std::to_string(extent.value) : extent.symbol;
  }
  return text + "]";
}

bool fits(std::span<const Extent> wanted, std::span<const std::int64_t> found) {
  return std::equal(wanted.begin(), wanted.end(), found.begin(), found.end(), [](const Extent& extent, std::int64_t n) {
    return extent.value < 0 || n < 0 || extent.value == n;
  });
}

// Ports of one side of the manifest's graph, states included.
Ports manifest_ports(const GraphInfo& graph, bool inputs) {
  Ports ports;
  for (const PortInfo& port : inputs ? graph.inputs : graph.outputs) ports[port.name] = {port.dtype, port.shape};
  for (const StateInfo& state : graph.states) {
    Port port{state.dtype, state.shape};
    // A growing cache leaves the graph longer than it came in, so its length is free on both sides.
    if (!inputs && state.kind == StateKind::growing_kv && port.shape.size() == 4)
      port.shape[2] = {-1, "total_sequence_length"};
    ports[inputs ? state.input : state.output] = std::move(port);
  }
  return ports;
}

struct ModelPort {  // what the loaded model says of one input or output
  std::string name;
  std::optional<DType> dtype;
  Shape shape;  // -1: symbolic
};

ModelPort model_port(const OrtSession* session, bool inputs, std::size_t index, std::string_view where) {
  const OrtApi& api = ort::api();
  ModelPort port;
  OrtAllocator* allocator = nullptr;
  ort::check(api.GetAllocatorWithDefaultOptions(&allocator), where);
  char* name = nullptr;
  ort::check((inputs ? api.SessionGetInputName : api.SessionGetOutputName)(session, index, allocator, &name), where);
  port.name = name;
  ort::check(api.AllocatorFree(allocator, name), where);
  OrtTypeInfo* type = nullptr;
  ort::check((inputs ? api.SessionGetInputTypeInfo : api.SessionGetOutputTypeInfo)(session, index, &type), where);
  const ort::Owner<OrtTypeInfo> owner(type);
  const OrtTensorTypeAndShapeInfo* tensor = nullptr;
  ort::check(api.CastTypeInfoToTensorInfo(type, &tensor), where);
  if (tensor == nullptr) return port;  // a sequence or a map: no dtype
  ONNXTensorElementDataType element = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  ort::check(api.GetTensorElementType(tensor, &element), where);
  port.dtype = dtype_of_onnx(element);
  std::size_t rank = 0;
  ort::check(api.GetDimensionsCount(tensor, &rank), where);
  port.shape.resize(rank);
  ort::check(api.GetDimensions(tensor, port.shape.data(), rank), where);
  return port;
}

// The model and the manifest must agree on every port, or a binding would go to the wrong place.
void check_ports(const OrtSession* session, const Ports& ports, bool inputs, std::string_view where) {
  const OrtApi& api = ort::api();
  const char* side = inputs ? "input" : "output";
  std::size_t count = 0;
  ort::check((inputs ? api.SessionGetInputCount : api.SessionGetOutputCount)(session, &count), where);
  for (std::size_t i = 0; i < count; ++i) {
    const ModelPort found = model_port(session, inputs, i, where);
    const auto wanted = ports.find(found.name);
    if (wanted == ports.end())
      fail("{}: {} '{}' of the graph is not in {}; export again", where, side, found.name, kManifestFile);
    if (found.dtype != wanted->second.dtype || !fits(wanted->second.shape, found.shape)) {
      fail("{}: {} '{}' is {} {} in the graph, {} {} in {}; export again", where, side, found.name,
           found.dtype ? dtype_name(*found.dtype) : "no tensor", to_string(found.shape),
           dtype_name(wanted->second.dtype), describe(wanted->second.shape), kManifestFile);
    }
  }
  if (count != ports.size()) {
    fail("{}: {} names {} {}s, the graph has {}; export again", where, kManifestFile, ports.size(), side, count);
  }
}

GraphOptimizationLevel level_of(Optimization optimization) noexcept {
  switch (optimization) {
    case Optimization::none:
      return ORT_DISABLE_ALL;
    case Optimization::basic:
      return ORT_ENABLE_BASIC;
    case Optimization::extended:
      return ORT_ENABLE_EXTENDED;
    case Optimization::all:
      break;
  }
  return ORT_ENABLE_ALL;
}

ort::Owner<OrtSessionOptions> make_options(const SessionOptions& options, std::string_view where) {
  const OrtApi& api = ort::api();
  OrtSessionOptions* raw = nullptr;
  ort::check(api.CreateSessionOptions(&raw), where);
  ort::Owner<OrtSessionOptions> result(raw);
  const int threads = options.threads > 0 ? options.threads : static_cast<int>(std::thread::hardware_concurrency());
  ort::check(api.SetIntraOpNumThreads(raw, std::max(threads, 1)), where);
  ort::check(api.SetInterOpNumThreads(raw, 1), where);
  ort::check(api.SetSessionGraphOptimizationLevel(raw, level_of(options.optimization)), where);
  // A pattern is kept for every combination of input lengths ever seen: in a decode loop that is a leak.
  ort::check(api.DisableMemPattern(raw), where);
  ort::check(api.AddSessionConfigEntry(raw, "session.intra_op.allow_spinning", options.spin ? "1" : "0"), where);
  ort::check(api.AddSessionConfigEntry(raw, "session.disable_prepacking", options.prepack ? "0" : "1"), where);
  if (options.register_operators) ort::check(options.register_operators(raw, OrtGetApiBase()), where);
  return result;
}

ort::Owner<OrtSession> load(const OrtEnv* environment, const std::filesystem::path& file,
                            const OrtSessionOptions* options, const Manifest& manifest) {
  OrtSession* session = nullptr;
  try {
    ort::check(ort::api().CreateSession(environment, file.c_str(), options, &session), file.string());
  } catch (const Error& error) {
    // The runtime names the first node that it has no kernel for; why that is so it cannot know.
    if (manifest.activation != DType::bf16) throw;
    fail(
        "{}; the package's activations are bf16, for which ONNX Runtime has no MatMul on a CPU: export with --dtype "
        "fp32 or fp16",
        error.what());
  }
  return ort::Owner<OrtSession>(session);
}

const GraphInfo& find_graph(const Manifest& manifest, std::string_view role, std::string_view where) {
  for (const GraphInfo& graph : manifest.graphs) {
    if (graph.role == role) return graph;
  }
  std::string roles;
  for (const GraphInfo& graph : manifest.graphs) roles += (roles.empty() ? "" : ", ") + graph.role;
  fail("{}: no graph with role '{}'; found {}", where, role, roles.empty() ? "none" : roles);
}

const PortInfo* find_port(std::span<const PortInfo> ports, std::string_view name) noexcept {
  const auto found = std::find_if(ports.begin(), ports.end(), [&](const PortInfo& port) { return port.name == name; });
  return found == ports.end() ? nullptr : &*found;
}

}  // namespace

struct Session::Impl {
  Manifest manifest;
  const GraphInfo* graph = nullptr;
  std::string where;  // the graph's file, for messages
  Ports inputs, outputs;
  ort::Owner<OrtEnv> environment;
  ort::Owner<OrtMemoryInfo> memory;
  ort::Owner<OrtSession> session;

  ort::Owner<OrtValue> bind(const PortBinding& binding, const Ports& ports) const;
};

Session::Session(const std::filesystem::path& package, const SessionOptions& options)
    : impl_(std::make_unique<Impl>()) {
  const OrtApi& api = ort::api();
  Impl& self = *impl_;
  self.manifest = read_manifest(package);
  self.graph = &find_graph(self.manifest, options.role, package.string());
  const std::filesystem::path file = package / self.graph->file;
  self.where = file.string();
  if (!std::filesystem::is_regular_file(file)) fail("{}: no such file, though {} names it", self.where, kManifestFile);
  self.inputs = manifest_ports(*self.graph, true);
  self.outputs = manifest_ports(*self.graph, false);
  self.environment = ort::make_environment();
  OrtMemoryInfo* memory = nullptr;
  ort::check(api.CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &memory), self.where);
  self.memory.reset(memory);
  const ort::Owner<OrtSessionOptions> settings = make_options(options, self.where);
  self.session = load(self.environment.get(), file, settings.get(), self.manifest);
  check_ports(self.session.get(), self.inputs, true, self.where);
  check_ports(self.session.get(), self.outputs, false, self.where);
}

Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

const Manifest& Session::manifest() const noexcept { return impl_->manifest; }
const GraphInfo& Session::graph() const noexcept { return *impl_->graph; }
const PortInfo* Session::input(std::string_view name) const noexcept { return find_port(impl_->graph->inputs, name); }
const PortInfo* Session::output(std::string_view name) const noexcept { return find_port(impl_->graph->outputs, name); }

ort::Owner<OrtValue> Session::Impl::bind(const PortBinding& binding, const Ports& ports) const {
  static std::byte nothing;  // an address for tensors without elements; never read or written
  const auto port = ports.find(binding.name);
  if (port == ports.end()) fail("{}: the graph has no '{}'", where, binding.name);
  const TensorRef& tensor = binding.tensor;
  if (tensor.dtype != port->second.dtype || !fits(port->second.shape, tensor.shape)) {
    fail("{}: '{}' is {} {}, given {} {}", where, binding.name, dtype_name(port->second.dtype),
         describe(port->second.shape), dtype_name(tensor.dtype), to_string(tensor.shape));
  }
  const auto bytes = byte_count(tensor.shape, tensor.dtype);
  if (!bytes || *bytes > tensor.bytes || (*bytes > 0 && tensor.data == nullptr)) {
    fail("{}: '{}' given as {} does not fit its {} bytes of memory", where, binding.name, to_string(tensor.shape),
         tensor.bytes);
  }
  OrtValue* value = nullptr;
  ort::check(ort::api().CreateTensorWithDataAsOrtValue(memory.get(), *bytes > 0 ? tensor.data : &nothing, *bytes,
                                                       tensor.shape.data(), tensor.shape.size(),
                                                       ort::element_type(tensor.dtype), &value),
             where);
  return ort::Owner<OrtValue>(value);
}

void Session::run(std::span<const PortBinding> inputs, std::span<const PortBinding> outputs) const {
  const Impl& self = *impl_;
  std::vector<std::string> names;  // ONNX Runtime wants them terminated
  std::vector<ort::Owner<OrtValue>> owners;
  names.reserve(inputs.size() + outputs.size());
  owners.reserve(inputs.size() + outputs.size());
  std::set<std::string_view> given;
  for (const PortBinding& binding : inputs) {
    if (!given.insert(binding.name).second) fail("{}: input '{}' is given twice", self.where, binding.name);
    names.emplace_back(binding.name);
    owners.push_back(self.bind(binding, self.inputs));
  }
  for (const PortBinding& binding : outputs) {
    names.emplace_back(binding.name);
    owners.push_back(self.bind(binding, self.outputs));
  }
  for (const auto& [name, port] : self.inputs) {
    if (!given.contains(name)) {
      fail("{}: the graph wants an input '{}', which this program does not know how to feed", self.where, name);
    }
  }
  std::vector<const char*> c_names;
  std::vector<OrtValue*> values;
  for (const std::string& name : names) c_names.push_back(name.c_str());
  for (const auto& owner : owners) values.push_back(owner.get());
  ort::check(ort::api().Run(self.session.get(), nullptr, c_names.data(), values.data(), inputs.size(),
                            c_names.data() + inputs.size(), outputs.size(), values.data() + inputs.size()),
             self.where);
}

std::string runtime_version() { return OrtGetApiBase()->GetVersionString(); }

}  // namespace sluice
