"""Includes climb no floor, stay within the declared dependencies, and keep each third party in its one place.

Usage: floors.py FLOORS.TXT   (written by CMake: "folder floor dependency,dependency" a line)
"""
import pathlib
import re
import sys

import tree

# Third-party includes and the only places that may have them.
CONFINED = [
    (re.compile(r"<onnxruntime"), ("src/ops/", "src/session/", "bench/", "tests/support/")),
    (re.compile(r"<google/protobuf|\.pb\.h"), ("src/onnx/",)),
    (re.compile(r"<nlohmann/"), ("src/base/json.cc",)),
    (re.compile(r"<xxhash\.h>"), ("src/base/hash.cc",)),
    (re.compile(r"<(?:hwy/|[a-z]*mmintrin\.h|immintrin\.h|cpuid\.h|arm_neon\.h)"), ("src/kernels/", "bench/roofs")),
    (re.compile(r"<CLI/"), ("src/apps/", "tools/")),
    (re.compile(r"<httplib\.h>"), ("src/serve/",)),
    (re.compile(r"<benchmark/"), ("bench/",)),
]
# Whatever the floors allow: the run half never sees the build half.
RUN_HALF = ("session", "engine", "serve")
BUILD_HALF = ("checkpoint", "onnx", "graph", "export")
INCLUDE = re.compile(r'^\s*#\s*include\s*("[^"]+"|<[^>]+>)', re.M)


def read_floors(path):
    floors, depends = {}, {}
    for line in pathlib.Path(path).read_text().splitlines():
        folder, floor, below = (line.split(" ") + [""])[:3]
        floors[folder] = int(floor)
        depends[folder] = [name for name in below.split(",") if name]
    return floors, depends


def reachable(folder, depends):
    seen, waiting = set(), list(depends.get(folder, []))
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += depends.get(name, [])
    return seen


def folder_of(path, floors):
    """The target's folder that a path below src/ lies in: "kernels/cpu" before "kernels"."""
    parts = pathlib.PurePosixPath(path).parts[:-1]
    for length in range(len(parts), 0, -1):
        name = "/".join(parts[:length])
        if name in floors:
            return name
    return None


def check_own(path, target, floors, depends):
    """The complaint about one quoted include of one source below src/, or None."""
    own, other = folder_of(path.relative_to("src").as_posix(), floors), folder_of(target, floors)
    if target.startswith("."):
        return "relative include; write the path from src/"
    if target.startswith("tests/support/") and tree.is_test(path):
        return None
    if own is None:
        return "its folder is no sluice_library"
    if target.startswith("tests/support/"):
        return None if tree.is_test(path) else "only tests may see tests/support"
    if other is None:
        return None if target.endswith(".pb.h") else f"'{target}' lies in no sluice_library"
    if other == own:
        return None
    if own in RUN_HALF and other in BUILD_HALF:
        return f"the run half may not see {other}"
    if floors[other] >= floors[own] and not (tree.is_test(path) and floors[other] == floors[own]):
        return f"{own} is on floor {floors[own]}, {other} on floor {floors[other]}"
    if other not in reachable(own, depends) and not tree.is_test(path):
        return f"{own} does not declare that it depends on {other}"
    return None


def complaints(path, text, floors, depends):
    for match in INCLUDE.finditer(text):
        target = match.group(1)
        line = text.count("\n", 0, match.start(1)) + 1
        for pattern, places in CONFINED:
            if pattern.search(target) and not path.as_posix().startswith(places) and not tree.is_test(path):
                yield f"{path}:{line}: {target} belongs to {', '.join(places)}"
        if target.startswith('"') and path.parts[0] == "src":
            complaint = check_own(path, target[1:-1], floors, depends)
            if complaint:
                yield f"{path}:{line}: includes {target}: {complaint}"


def main():
    floors, depends = read_floors(sys.argv[1])
    sources = tree.files(".h", ".cc")
    problems = []
    for path in sources:
        problems += complaints(path, (tree.ROOT / path).read_text(), floors, depends)
    tree.finish(problems, f"{len(sources)} files, {len(floors)} folders with floors")


if __name__ == "__main__":
    main()
