"""Runs clang-tidy (.clang-tidy: a short list) over the sources below src/ that changed since they last passed.

A whole run takes minutes, so each run has a time budget. What it did not reach it says, and the next run takes up: results
are kept in BUILD_FOLDER/tidy by the content of a source and of all project headers it includes.
Usage: tidy.py BUILD_FOLDER [SECONDS]
"""
import concurrent.futures
import hashlib
import json
import pathlib
import re
import subprocess
import sys
import time

import tree

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)
DEFAULT_BUDGET = 150  # seconds


def fingerprint(path):
    """Of a source, every project header it reaches, and the list of checks."""
    digest = hashlib.sha256((tree.ROOT / ".clang-tidy").read_bytes())
    seen, waiting = set(), [path]
    while waiting:
        current = waiting.pop()
        if current in seen or not (tree.ROOT / current).is_file():
            continue
        seen.add(current)
        waiting += [pathlib.Path("src") / name for name in INCLUDE.findall((tree.ROOT / current).read_text())]
    for name in sorted(seen):
        digest.update(name.as_posix().encode() + (tree.ROOT / name).read_bytes())
    return digest.hexdigest()


def candidates(build):
    commands = json.loads((build / "compile_commands.json").read_text())
    names = {pathlib.Path(entry["file"]) for entry in commands}
    paths = {name.relative_to(tree.ROOT) for name in names if name.is_relative_to(tree.ROOT / "src")}
    return sorted(path for path in paths if not tree.is_test(path) and ".simd." not in path.name)


def check(build, path, deadline):
    """The complaints of one file as text; None when there was no time left for it."""
    if time.monotonic() > deadline:
        return None
    # The deprecation is libstdc++'s own, in std::stable_sort.
    result = subprocess.run(["clang-tidy-19", "-p", str(build), "--quiet", "--extra-arg=-Wno-unknown-warning-option",
                             "--extra-arg=-Wno-deprecated-declarations", str(path)],
                            cwd=tree.ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    return "" if result.returncode == 0 else result.stdout + result.stderr


def main():
    build = pathlib.Path(sys.argv[1])
    deadline = time.monotonic() + float(sys.argv[2] if len(sys.argv) > 2 else DEFAULT_BUDGET)
    passed = build / "tidy"
    passed.mkdir(exist_ok=True)
    marks = {path: passed / fingerprint(path) for path in candidates(build)}
    waiting = sorted((path for path, mark in marks.items() if not mark.exists()), key=lambda path: marks[path].name)
    problems, late = [], []
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        for path, found in zip(waiting, pool.map(lambda item: check(build, item, deadline), waiting)):
            if found is None:
                late.append(path)
            elif found:
                problems.append(found.strip())
            else:
                marks[path].touch()
    print(f"out of time for {len(late)} files, which the next run takes up: {', '.join(map(str, late))}" if late else "every file has passed")
    tree.finish(problems, f"{len(waiting) - len(late)} files checked now, {len(marks) - len(waiting)} had passed before")


if __name__ == "__main__":
    main()
