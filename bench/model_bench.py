#!/usr/bin/env python3
"""A whole model beside its peer: a synthetic 0.8B checkpoint, packed with bf16 weights on `sluice bench`, and its dense
fp32 package on onnxruntime-genai's Generator, alternating in one run.

Run: build/deps/venv/bin/python bench/model_bench.py [--threads 1,2] [--prompt 512] [--decode 32] [--repeat 3] [--work DIR]
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run(*command):
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {result.stderr}")
    return result.stdout


def peer(package, threads, prompt, decode, repeat):
    """Runs in a process of its own, so that its peak memory is its own: prints JSON."""
    import resource
    import time

    import numpy as np
    import onnxruntime_genai as og

    config = og.Config(str(package))
    config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}))
    model = og.Model(config)
    ids = (np.arange(prompt, dtype=np.int64) * 7919 % 200000).astype(np.int32)
    best = {"prefill": 0.0, "decode": 0.0}
    for _ in range(repeat):
        params = og.GeneratorParams(model)
        params.set_search_options(max_length=prompt + decode + 1, do_sample=False)
        generator = og.Generator(model, params)
        start = time.perf_counter()
        generator.append_tokens(ids)
        generator.generate_next_token()
        best["prefill"] = max(best["prefill"], prompt / (time.perf_counter() - start))
        start = time.perf_counter()
        for _ in range(decode):
            generator.generate_next_token()
        best["decode"] = max(best["decode"], decode / (time.perf_counter() - start))
    best["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(best))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--decode", type=int, default=32)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--work", type=Path, default=None)
    parser.add_argument("--bin", type=Path, default=ROOT / "build/release/bin")
    parser.add_argument("--peer", type=Path, default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        return peer(args.peer, int(args.threads), args.prompt, args.decode, args.repeat)
    work = Path(tempfile.mkdtemp(prefix="sluice-model-bench-", dir=args.work))
    try:
        run(args.bin / "make_checkpoint", work / "checkpoint")
        run(args.bin / "sluice", "export", work / "checkpoint", work / "packed", "--target", "sluice", "--prune-lm-head", "--quiet", "--no-sync")
        run(args.bin / "sluice", "export", work / "checkpoint", work / "dense", "--prune-lm-head", "--quiet", "--no-sync")
        shutil.rmtree(work / "checkpoint")
        print(f"{'threads':>7}  {'':<28} {'prefill tok/s':>14} {'decode tok/s':>13} {'of read roof':>13} {'peak MB':>9}")
        for threads in args.threads.split(","):
            # A process a thread count: its peak memory is that run's.
            # Workers spin on both sides: it is the default of genai's sessions.
            ours = json.loads(run(args.bin / "sluice", "bench", work / "packed", "--spin", "--prompt", args.prompt, "--decode", args.decode, "--repeat",
                                  args.repeat, "--bench-threads", threads, "--json"))
            theirs = json.loads(run(sys.executable, __file__, "--peer", work / "dense", "--threads", threads, "--prompt", args.prompt,
                                    "--decode", args.decode, "--repeat", args.repeat))
            row, roof = ours["results"][0], ours["roofs"][0]
            print(f"{threads:>7}  {'sluice, packed, bf16 weights':<28} {row['prefill_tokens_per_second']:>14.1f} "
                  f"{row['decode_tokens_per_second']:>13.2f} {100 * row['decode_share_of_roof']:>12.0f}% {ours['peak_resident_bytes'] / 1e6:>9.0f}")
            print(f"{threads:>7}  {'genai, dense, fp32':<28} {theirs['prefill']:>14.1f} {theirs['decode']:>13.2f} {'':>13} {theirs['peak'] / 1e6:>9.0f}")
            print(f"{threads:>7}  {'ratio':<28} {row['prefill_tokens_per_second'] / theirs['prefill']:>14.2f} "
                  f"{row['decode_tokens_per_second'] / theirs['decode']:>13.2f}   roofs: {roof['fma_gflops']:.0f} GFLOP/s, {roof['read_gbs']:.1f} GB/s read", flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
