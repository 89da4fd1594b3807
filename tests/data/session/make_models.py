"""Makes dense.onnx and packed.onnx beside this file: hand-sized decoders with real state operators, for session tests.

Run with build/deps/venv/bin/python when they must change; the results are committed. Sizes are in session_test.cc too.
"""
import pathlib

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

VOCAB, HIDDEN, HEADS, DIM, KERNEL = 13, 16, 2, 8, 4
MS = "com.microsoft"
FLOAT, INT64, INT32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32
rng = np.random.default_rng(7)


def weight(name, *shape, scale=0.5):
    return numpy_helper.from_array((rng.standard_normal(shape) * scale).astype(np.float32), name)


def ints(name, *values):
    return numpy_helper.from_array(np.array(values, np.int64), name)


def node(op, inputs, outputs, domain=MS, **attributes):
    return helper.make_node(op, inputs, outputs, domain=domain, **attributes)


def value(name, dtype, *shape):
    return helper.make_tensor_value_info(name, dtype, list(shape))


def write(name, nodes, inputs, outputs, weights):
    graph = helper.make_graph(nodes, "main_graph", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22), helper.make_opsetid(MS, 1)], ir_version=10)
    save(model, pathlib.Path(__file__).parent / name)


def dense():
    nodes = [
        node("Gather", ["embed", "input_ids"], ["x"], ""),
        node("Transpose", ["x"], ["xt"], "", perm=[0, 2, 1]),
        node("CausalConvWithState", ["xt", "conv_weight", "conv_bias", "past_key_values.0.conv_state"],
             ["ct", "present.0.conv_state"], ndim=1, activation="silu"),
        node("Transpose", ["ct"], ["c"], "", perm=[0, 2, 1]),
        node("MatMul", ["c", "decay_weight"], ["decay_raw"], ""),
        node("Sigmoid", ["decay_raw"], ["decay_gate"], ""),
        node("Neg", ["decay_gate"], ["decay"], ""),
        node("Sigmoid", ["decay_raw"], ["beta"], ""),
        node("LinearAttention", ["c", "c", "c", "past_key_values.0.recurrent_state", "decay", "beta"],
             ["y", "present.0.recurrent_state"], q_num_heads=HEADS, kv_num_heads=HEADS, update_rule="gated_delta", scale=0.1),
        node("Mul", ["attention_mask", "one"], ["mask"], ""),
        node("ReduceSum", ["mask", "axis1"], ["total"], "", keepdims=0),
        node("Sub", ["total", "one"], ["last"], ""),
        node("Cast", ["last"], ["seqlens_k"], "", to=INT32),
        node("Shape", ["attention_mask"], ["mask_shape"], ""),
        node("Gather", ["mask_shape", "one"], ["total_length"], "", axis=0),
        node("Cast", ["total_length"], ["total_int"], "", to=INT32),
        node("GroupQueryAttention", ["y", "c", "x", "past_key_values.1.key", "past_key_values.1.value", "seqlens_k", "total_int"],
             ["a", "present.1.key", "present.1.value"], num_heads=HEADS, kv_num_heads=HEADS),
        node("Cast", ["position_ids"], ["positions"], "", to=FLOAT),
        node("Mul", ["positions", "step"], ["bias_flat"], ""),
        node("Unsqueeze", ["bias_flat", "axis_last"], ["bias"], ""),
        node("Add", ["a", "bias"], ["h"], ""),
        node("MatMul", ["h", "head"], ["logits"], ""),
    ]
    state = lambda side, length: [
        value(f"{side}.0.conv_state", FLOAT, "batch_size", HIDDEN, KERNEL - 1),
        value(f"{side}.0.recurrent_state", FLOAT, "batch_size", HEADS, DIM, DIM),
        value(f"{side}.1.key", FLOAT, "batch_size", HEADS, length, DIM),
        value(f"{side}.1.value", FLOAT, "batch_size", HEADS, length, DIM),
    ]
    inputs = [value("input_ids", INT64, "batch_size", "sequence_length"),
              value("attention_mask", INT64, "batch_size", "total_sequence_length"),
              value("position_ids", INT64, "batch_size", "sequence_length")] + state("past_key_values", "past_sequence_length")
    outputs = [value("logits", FLOAT, "batch_size", "sequence_length", VOCAB)] + state("present", "total_sequence_length")
    weights = [weight("embed", VOCAB, HIDDEN), weight("conv_weight", HIDDEN, 1, KERNEL), weight("conv_bias", HIDDEN),
               weight("decay_weight", HIDDEN, HEADS), weight("head", HIDDEN, VOCAB), ints("one", 1), ints("axis1", 1),
               ints("axis_last", -1), numpy_helper.from_array(np.array([0.01], np.float32), "step")]
    write("dense.onnx", nodes, inputs, outputs, weights)


def packed():
    nodes = [
        node("Gather", ["embed", "input_ids"], ["x"], ""),
        node("VarlenCausalConvWithState", ["x", "conv_weight", "cumulative_sequence_lengths", "conv_bias", "past_key_values.0.conv_state"],
             ["c", "present.0.conv_state"], activation="silu"),
        node("Reshape", ["c", "heads_shape"], ["ch"], ""),
        node("MatMul", ["c", "decay_weight"], ["decay_raw"], ""),
        node("Sigmoid", ["decay_raw"], ["decay_gate"], ""),
        node("Neg", ["decay_gate"], ["decay"], ""),
        node("Sigmoid", ["decay_raw"], ["beta"], ""),
        node("GatedDeltaNet", ["ch", "ch", "ch", "cumulative_sequence_lengths", "decay", "beta", "past_key_values.0.recurrent_state"],
             ["yh", "present.0.recurrent_state"], update_rule="gated_delta", scale=1.0, gate_activation="none",
             beta_activation="none", qk_l2_norm=1),
        node("Reshape", ["yh", "flat_shape"], ["y"], ""),
        node("Cast", ["position_ids"], ["positions"], "", to=FLOAT),
        node("Mul", ["positions", "step"], ["bias_flat"], ""),
        node("Unsqueeze", ["bias_flat", "axis_last"], ["bias"], ""),
        node("Add", ["y", "bias"], ["h"], ""),
        node("Gather", ["h", "logits_indices"], ["chosen"], "", axis=0),
        node("MatMul", ["chosen", "head"], ["logits"], ""),
    ]
    state = lambda side: [
        value(f"{side}.0.conv_state", FLOAT, "batch_size", HIDDEN, KERNEL - 1),
        value(f"{side}.0.recurrent_state", FLOAT, "batch_size", HEADS, DIM, DIM),
    ]
    inputs = [value("input_ids", INT64, "num_tokens"), value("position_ids", INT64, "num_tokens"),
              value("cumulative_sequence_lengths", INT32, "batch_size + 1"), value("logits_indices", INT32, "num_logits")]
    outputs = [value("logits", FLOAT, "num_logits", VOCAB)] + state("present")
    weights = [weight("embed", VOCAB, HIDDEN), weight("conv_weight", HIDDEN, 1, KERNEL), weight("conv_bias", HIDDEN),
               weight("decay_weight", HIDDEN, HEADS), weight("head", HIDDEN, VOCAB), ints("heads_shape", 0, HEADS, DIM),
               ints("flat_shape", 0, HIDDEN), ints("axis_last", -1), numpy_helper.from_array(np.array([0.01], np.float32), "step")]
    write("packed.onnx", nodes, inputs + state("past_key_values"), outputs, weights)


if __name__ == "__main__":
    dense()
    packed()
