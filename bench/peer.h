// ONNX Runtime's own operator beside ours: a session over a model of one node, with the caller's buffers bound once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "onnx/graph.h"

namespace sluice::bench {

struct PeerTensor {
  std::string name;  // empty: an absent optional input or output
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  void* data = nullptr;   // dense; the caller's, alive as long as the Peer; two tensors may share one buffer
  bool constant = false;  // an initializer, copied into the model, as a weight is: the runtime may pack it
};

struct PeerNode {
  std::string domain;  // "" = ai.onnx
  std::string op;
  std::vector<PeerTensor> inputs;
  std::vector<PeerTensor> outputs;
  std::vector<Attribute> attributes;
};

class Peer {
 public:
  // `library` is a custom operator library to register first; empty: none. Throws sluice::Error with the runtime's
  // message when the model does not load.
  Peer(const PeerNode& node, int threads, const std::string& library = {});
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  void run();
  // Binds another buffer to an input or output of that name.
  void rebind(const std::string& name, void* data);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice::bench
