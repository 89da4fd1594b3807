"""Asks ONNX's checker (with strict shape inference) and the installed ONNX Runtime, on CPU, about model files.

Usage: check_models.py MODEL...   prints one JSON list; "checker" and "load" are "" or the error
"""
import json
import sys

import onnx
import onnxruntime


def check(path):
    try:
        onnx.checker.check_model(path, full_check=True)
    except Exception as error:  # whatever the checker throws is the answer
        return str(error)
    return ""


def load(path):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # likewise
        return str(error), []
    return "", [{"name": o.name, "shape": [str(d) for d in o.shape]} for o in session.get_outputs()]


def main():
    out = []
    for path in sys.argv[1:]:
        error, outputs = load(path)
        out.append({"checker": check(path), "load": error, "outputs": outputs})
    print(json.dumps(out))


main()
