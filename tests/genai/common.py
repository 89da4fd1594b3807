"""What the tests with Python's onnxruntime-genai share: exporting golden checkpoints, and what they must answer."""
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
GOLDENS = ROOT / "tests/data/goldens"
SLUICE = Path(os.environ.get("SLUICE_BIN", ROOT / "build/release/bin/sluice"))
NUMPY = {"F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4"}


def load_safetensors(path):
    """name -> array, for files without bfloat16."""
    raw = Path(path).read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    out = {}
    for name, entry in json.loads(raw[8:8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        out[name] = np.frombuffer(raw[8 + length + begin:8 + length + end], NUMPY[entry["dtype"]]).reshape(entry["shape"])
    return out


def cases():
    """Names of the golden checkpoints, sorted."""
    return sorted(d.parent.name for d in GOLDENS.glob("*/meta.json"))


def config_of(case):
    config = json.loads((GOLDENS / case / "config.json").read_text())
    return config.get("text_config") or config


def export(checkpoint, output, *options):
    """Runs sluice export; returns the package folder."""
    command = [str(SLUICE), "export", str(checkpoint), str(output), "--quiet", "--no-sync", *options]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {result.returncode}: {result.stderr}")
    return Path(output)


def sequences(case):
    """(input ids, greedy ids) of every recorded sequence of a golden case."""
    expected = load_safetensors(GOLDENS / case / "expected.safetensors")
    meta = json.loads((GOLDENS / case / "meta.json").read_text())
    return [(expected[f"seq{i}.input_ids"].tolist(), expected[f"seq{i}.greedy_ids"].tolist()) for i in range(len(meta["sequences"]))]


class Checks:
    """Counts comparisons and remembers what differed."""

    def __init__(self):
        self.done, self.failures = 0, []

    def equal(self, what, found, expected):
        self.done += 1
        if found != expected:
            self.failures.append(f"{what}: found {found}, expected {expected}")

    def finish(self):
        print(f"{self.done} comparisons, {len(self.failures)} differ")
        for failure in self.failures:
            print(failure)
        sys.exit(1 if self.failures or self.done == 0 else 0)
