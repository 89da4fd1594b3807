"""The operator library in Python's onnxruntime: a packed graph of GatedDeltaNet and PagedAttention against numpy."""
import os
import unittest

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

LIBRARY = os.environ["SLUICE_OPS"]
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "int32": TensorProto.INT32}

OFFSETS = np.array([0, 5, 6, 13], np.int32)
PAST = np.array([2, 7, 0], np.int32)
BLOCK = 4
HEADS, KV_HEADS, DIM = 4, 2, 8  # attention, and the recurrence's value heads, key heads and head size


def blocks():
    """Four blocks a row, in no order."""
    return np.array([[b * 4 + (3 - c) for c in range(4)] for b in range(3)], np.int32)


def inputs(dtype):
    random = np.random.default_rng(1)
    tokens = OFFSETS[-1]

    def floats(*shape):
        return random.uniform(-1, 1, shape).astype(dtype)

    return {
        "q": floats(tokens, KV_HEADS, DIM),
        "k": floats(tokens, KV_HEADS, DIM),
        "v": floats(tokens, HEADS, DIM),
        "cu": OFFSETS,
        "a": floats(tokens, HEADS),
        "b": floats(tokens, HEADS),
        "state": random.uniform(-1, 1, (3, HEADS, DIM, DIM)).astype(np.float32),
        "a_log": random.uniform(-1, 1, HEADS).astype(np.float32),
        "dt_bias": random.uniform(-1, 1, HEADS).astype(np.float32),
        "key": floats(tokens, KV_HEADS * DIM),
        "value": floats(tokens, KV_HEADS * DIM),
        "key_cache": floats(12, BLOCK, KV_HEADS, DIM),
        "value_cache": floats(12, BLOCK, KV_HEADS, DIM),
        "past": PAST,
        "table": blocks(),
    }


def model(dtype):
    """The recurrence's output is the attention's query. Nothing between the two is described: it must be inferred."""
    symbols = {"q": ["tokens", KV_HEADS, DIM], "v": ["tokens", HEADS, DIM], "key": ["tokens", KV_HEADS * DIM]}
    symbols |= {"k": symbols["q"], "value": symbols["key"], "cu": ["rows_and_one"], "past": ["rows"]}
    data = inputs(dtype)

    def declare(name):
        return helper.make_tensor_value_info(name, TYPES[data[name].dtype.name], symbols.get(name, data[name].shape))

    nodes = [
        helper.make_node(
            "GatedDeltaNet", ["q", "k", "v", "cu", "a", "b", "state", "a_log", "dt_bias"], ["mixed", "new_state"], "mixer",
            domain="com.microsoft", gate_activation="qwen", beta_activation="sigmoid", qk_l2_norm=1),
        helper.make_node("Reshape", ["mixed", "flat"], ["query"], "flatten"),
        helper.make_node(
            "PagedAttention",
            ["query", "key", "value", "key_cache", "value_cache", "cu", "past", "table"], ["y", "new_keys", "new_values"],
            "attention", domain="com.microsoft", num_heads=HEADS, kv_num_heads=KV_HEADS),
    ]
    element = TYPES[np.dtype(dtype).name]
    outputs = [helper.make_tensor_value_info("y", element, ["tokens", HEADS * DIM]),
               helper.make_tensor_value_info("new_state", TensorProto.FLOAT, data["state"].shape),
               helper.make_tensor_value_info("new_keys", element, data["key_cache"].shape),
               helper.make_tensor_value_info("new_values", element, data["value_cache"].shape)]
    graph = helper.make_graph(nodes, "packed", [declare(name) for name in data], outputs,
                              [helper.make_tensor("flat", TensorProto.INT64, [2], [0, HEADS * DIM])])
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 22),
                                                                  helper.make_opsetid("com.microsoft", 1)])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def recurrence(data):
    q, k, v, a, b = (data[name].astype(np.float64) for name in ("q", "k", "v", "a", "b"))
    q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-12) for x in (q, k))
    decay = np.exp(-np.exp(data["a_log"]) * np.log1p(np.exp(a + data["dt_bias"])))
    beta, output, states = sigmoid(b), np.zeros(v.shape), []
    for row in range(3):
        state = data["state"][row].astype(np.float64)
        for t in range(OFFSETS[row], OFFSETS[row + 1]):
            for h in range(HEADS):
                m = h // (HEADS // KV_HEADS)
                state[h] *= decay[t, h]
                state[h] += np.outer(beta[t, h] * (v[t, h] - state[h] @ k[t, m]), k[t, m])
                output[t, h] = state[h] @ q[t, m] / np.sqrt(DIM)
        states.append(state)
    return output, np.array(states)


def attention(data, query):
    keys, values = (data[name].astype(np.float64) for name in ("key_cache", "value_cache"))
    output = np.zeros((OFFSETS[-1], HEADS, DIM))
    for row in range(3):
        for t in range(OFFSETS[row], OFFSETS[row + 1]):
            position = PAST[row] + t - OFFSETS[row]
            places = [(data["table"][row, p // BLOCK], p % BLOCK) for p in range(position + 1)]
            keys[places[-1]], values[places[-1]] = (data[n][t].reshape(KV_HEADS, DIM) for n in ("key", "value"))
            for h in range(HEADS):
                g = h // (HEADS // KV_HEADS)
                scores = np.array([keys[place][g] @ query[t, h] for place in places]) / np.sqrt(DIM)
                weights = np.exp(scores - scores.max())
                output[t, h] = weights @ np.array([values[place][g] for place in places]) / weights.sum()
    return output.reshape(-1, HEADS * DIM), keys, values


def options():
    result = ort.SessionOptions()
    result.log_severity_level = 4
    result.register_custom_ops_library(LIBRARY)
    return result


class Operators(unittest.TestCase):
    def test_packed_graph_gives_the_definition(self):
        for dtype, tolerance in ((np.float32, 2e-6), (np.float16, 3e-3)):
            with self.subTest(dtype.__name__):
                data = inputs(dtype)
                session = ort.InferenceSession(model(dtype).SerializeToString(), options(), ["CPUExecutionProvider"])
                y, state, keys, values = session.run(None, data)
                mixed, expected_state = recurrence(data)
                expected, expected_keys, expected_values = attention(data, mixed.astype(dtype).astype(np.float64))
                np.testing.assert_allclose(y, expected, atol=tolerance)
                np.testing.assert_allclose(state, expected_state, atol=2e-6)
                np.testing.assert_array_equal(keys, expected_keys.astype(dtype))
                np.testing.assert_array_equal(values, expected_values.astype(dtype))

    def test_shapes_flow_through_our_operators(self):
        undescribed = model(np.float16)
        undescribed.graph.output.append(helper.make_tensor_value_info("mixed", TensorProto.FLOAT16, None))
        undescribed.graph.output[0].type.tensor_type.ClearField("shape")
        session = ort.InferenceSession(undescribed.SerializeToString(), options(), ["CPUExecutionProvider"])
        shapes = {output.name: output.shape for output in session.get_outputs()}
        self.assertEqual(shapes["mixed"], ["tokens", HEADS, DIM])
        self.assertEqual(shapes["y"], ["tokens", HEADS * DIM])

    def test_errors_name_the_node(self):
        data = inputs(np.float32)
        session = ort.InferenceSession(model(np.float32).SerializeToString(), options(), ["CPUExecutionProvider"])
        data["table"] = data["table"] + 100
        with self.assertRaisesRegex(Exception, r"PagedAttention node 'attention': input 7 \(block_table\): expected "
                                               r"blocks from 0 to below 12, found 103 in row 0 at column 0"):
            session.run(None, data)
        broken = model(np.float32)
        broken.graph.node[0].attribute[0].s = b"nonsense"
        with self.assertRaisesRegex(Exception, "GatedDeltaNet node 'mixer': attribute .* found 'nonsense'"):
            ort.InferenceSession(broken.SerializeToString(), options(), ["CPUExecutionProvider"])

    def test_without_the_library_the_graph_does_not_load(self):
        with self.assertRaisesRegex(Exception, "PagedAttention"):
            ort.InferenceSession(model(np.float32).SerializeToString(), providers=["CPUExecutionProvider"])


if __name__ == "__main__":
    unittest.main()
