"""Prints, as JSON, the operator schemas that the installed ONNX Runtime lists for the domains "" and com.microsoft.

Usage: dump_schemas.py OPSET   (of the ai.onnx schemas of one name, the newest that is no newer than OPSET)
"""
import json
import sys

import onnx
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema


def attribute(spec):
    out = {"name": spec.name, "type": spec.type.name, "required": bool(spec.required)}
    if spec._default_value:
        value = onnx.helper.get_attribute_value(onnx.AttributeProto.FromString(spec._default_value))
        if isinstance(value, bytes):
            value = value.decode()
        if isinstance(value, (int, float, str)):
            out["default"] = value
    return out


def port(spec):
    types = sorted(t[len("tensor("):-1] for t in spec.types if t.startswith("tensor("))
    return {"name": spec.name, "option": spec.option.name, "types": types}


def main():
    newest = {}
    for schema in get_all_operator_schema():
        if schema.domain not in ("", "com.microsoft") or (not schema.domain and schema.since_version > int(sys.argv[1])):
            continue
        key = (schema.domain, schema.name)
        if key not in newest or newest[key].since_version < schema.since_version:
            newest[key] = schema
    print(json.dumps([{
        "domain": s.domain,
        "name": s.name,
        "since_version": s.since_version,
        "attributes": [attribute(a) for a in s.attributes.values()],
        "inputs": [port(p) for p in s.inputs],
        "outputs": [port(p) for p in s.outputs],
    } for s in newest.values()]))


main()
