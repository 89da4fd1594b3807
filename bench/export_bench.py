#!/usr/bin/env python3
"""Export speed beside the disk's: wall, CPU, peak memory and bytes of `sluice export`, and of dd writing as many bytes.

Run: bench/export_bench.py [--bin build/release/bin] [--work DIR] [--repeat 3] [--json FILE]
The checkpoint (0.8B geometry, 1.5 GB bf16, and a sparse 27B one) is made in DIR, which should be on the disk that counts.
Every figure is the median of the repetitions; dd and the export alternate, so that both meet the same disk.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path


def anonymous_kib(pid):
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1])
    except (FileNotFoundError, ProcessLookupError):
        pass
    return 0


def run(command):
    """Runs a command; returns wall and CPU seconds, peak resident and anonymous bytes, and what it printed."""
    os.sync()
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    peak = [0]
    done = threading.Event()

    def watch():
        while not done.is_set():
            peak[0] = max(peak[0], anonymous_kib(process.pid))
            time.sleep(0.002)

    watcher = threading.Thread(target=watch)
    watcher.start()
    out = [b""]
    reader = threading.Thread(target=lambda: out.__setitem__(0, process.stdout.read()))
    reader.start()
    errors = process.stderr.read()
    reader.join()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - start
    done.set()
    watcher.join()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed: {errors.decode()}")
    return {"wall": wall, "cpu": usage.ru_utime + usage.ru_stime, "user": usage.ru_utime, "sys": usage.ru_stime,
            "peak_rss": usage.ru_maxrss * 1024, "peak_anonymous": peak[0] * 1024, "stdout": out[0].decode()}


def folder_bytes(folder):
    return sum(f.stat().st_size for f in folder.iterdir())


def median_of(rows):
    return {key: statistics.median(row[key] for row in rows) for key in rows[0] if key != "stdout"}


def measure(args, work, checkpoint, dtype, sync):
    """One row of the table: the export and dd, alternating."""
    exports, copies = [], []
    out, flat = work / "out", work / "flat"
    size = None
    for _ in range(args.repeat):
        shutil.rmtree(out, ignore_errors=True)
        command = [args.bin / "sluice", "export", checkpoint, out, "--dtype", "fp32", "--weights", dtype, "--quiet"]
        if dtype == "fp16":
            command = [args.bin / "sluice", "export", checkpoint, out, "--target", "ort-cuda", "--quiet"]
        exports.append(run(command + ([] if sync else ["--no-sync"])))
        size = folder_bytes(out)
        flat.unlink(missing_ok=True)
        count = (size + (4 << 20) - 1) // (4 << 20)
        copies.append(run(["dd", "if=/dev/zero", f"of={flat}", "bs=4M", f"count={count}", "status=none"] + (["conv=fsync"] if sync else [])))
    shutil.rmtree(out, ignore_errors=True)
    flat.unlink(missing_ok=True)
    return {"export": median_of(exports), "dd": median_of(copies), "bytes": size}


def print_row(name, row):
    e, d = row["export"], row["dd"]
    print(f"{name:<28} {e['wall']:>8.2f} {d['wall']:>8.2f} {e['wall'] / d['wall']:>7.2f} {e['cpu']:>8.2f} "
          f"{e['peak_rss'] / 1e6:>9.0f} {e['peak_anonymous'] / 1e6:>9.0f} {row['bytes'] / 1e9:>8.3f}", flush=True)


def builder_available():
    probe = "import importlib.util as u, sys; sys.exit(not all(u.find_spec(m) for m in ('torch', 'transformers', 'onnxruntime_genai')))"
    return subprocess.run([sys.executable, "-c", probe], capture_output=True).returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = Path(__file__).resolve().parent.parent
    parser.add_argument("--bin", type=Path, default=root / "build/release/bin")
    parser.add_argument("--work", type=Path, default=None)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="sluice-bench-", dir=args.work))
    results = {}
    try:
        run([args.bin / "make_checkpoint", "--geometry", "0.8b", work / "0.8b"])
        run([args.bin / "make_checkpoint", "--geometry", "27b", "--sparse", work / "27b"])
        print(f"{'export (0.8B geometry)':<28} {'wall s':>8} {'dd s':>8} {'ratio':>7} {'CPU s':>8} {'RSS MB':>9} {'anon MB':>9} {'GB':>8}")
        for dtype in ("fp32", "fp16"):
            for sync in (True, False):
                name = f"{dtype}, {'fsync' if sync else 'no sync'}"
                results[name] = measure(args, work, work / "0.8b", dtype, sync)
                print_row(name, results[name])
        for name, extra in (("27B dry run", ["--dry-run"]), ("27B, 4 layers", ["--num-layers", "4", "--no-sync"])):
            shutil.rmtree(work / "out", ignore_errors=True)
            row = run([args.bin / "sluice", "export", work / "27b", work / "out", "--target", "ort-cuda", "--quiet"] + extra)
            results[name] = {key: row[key] for key in row if key != "stdout"}
            print(f"{name:<28} {row['wall']:>8.2f} {'':>8} {'':>7} {row['cpu']:>8.2f} {row['peak_rss'] / 1e6:>9.0f} {row['peak_anonymous'] / 1e6:>9.0f}")
        if builder_available():
            row = run([sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", work / "0.8b", "-o", work / "peer", "-p", "fp32", "-e", "cpu"])
            results["genai builder fp32"] = {key: row[key] for key in row if key != "stdout"}
            print(f"{'genai builder, fp32 cpu':<28} {row['wall']:>8.2f} {'':>8} {'':>7} {row['cpu']:>8.2f} {row['peak_rss'] / 1e6:>9.0f}")
        else:
            print("genai's builder: not installed here (needs torch and transformers)")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
