"""What the objects of each instruction-set level and the operator library may define and need.

Usage: symbols.py BUILD_FOLDER
"""
import pathlib
import re
import subprocess
import sys

import tree

# A weak symbol is merged with its namesakes at link time: one made with a level's flags would then run on machines without
# them. In a namespace of its own level it has no namesakes.
# (amx uses the vectors of avx512, whose code it may share: what it adds, no compiler uses unasked.)
LEVELS = {"avx2": re.compile(r"4avx2|N_AVX2"), "avx512": re.compile(r"6avx512|N_AVX3"), "amx": re.compile(r"3amx|N_AVX3")}
LIBRARY_NEEDS = {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"}
LIBRARY_EXPORTS = {"RegisterCustomOps"}
NEWEST_GLIBC = (2, 34)  # Debian 12, Ubuntu 22.04, RHEL 9 and later have it


def output(*command):
    return subprocess.run(command, text=True, stdout=subprocess.PIPE, check=True).stdout


def weak_symbols(level, listing):
    """Complaints about the lines of `nm` for one object."""
    for line in listing.splitlines():
        kind, name = line.split()[-2:]
        if kind in "WVuwv" and kind != "w" and kind != "v" and not LEVELS[level].search(name):
            yield f"weak symbol {name}: it would be merged with the one of other objects"


def check_levels(build, problems):
    count = 0
    for level in LEVELS:
        for item in sorted(build.rglob(f"*_{level}.dir/**/*.o")):
            count += 1
            problems += [f"{item.name} ({level}): {found}" for found in weak_symbols(level, output("nm", "--defined-only", str(item)))]
    if count == 0:
        problems.append(f"no objects of any level below {build}: nothing was checked")
    return count


def library_complaints(exports, needs, versions):
    if exports != LIBRARY_EXPORTS:
        yield f"exports {sorted(exports)}, expected {sorted(LIBRARY_EXPORTS)}"
    if needs - LIBRARY_NEEDS:
        yield f"needs {sorted(needs - LIBRARY_NEEDS)}, expected no more than {sorted(LIBRARY_NEEDS)}"
    newest = max(versions, default=(0, 0))
    if newest > NEWEST_GLIBC:
        yield f"needs glibc {'.'.join(map(str, newest))}, expected at most {'.'.join(map(str, NEWEST_GLIBC))}"


def check_library(path, problems):
    exports = {line.split()[-1] for line in output("nm", "-D", "--defined-only", str(path)).splitlines()}
    needs = set(re.findall(r"\(NEEDED\).*\[(.+)\]", output("readelf", "-d", str(path))))
    versions = {tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([0-9.]+)", output("readelf", "-V", str(path)))}
    problems += [f"{path.name}: {found}" for found in library_complaints(exports, needs, versions)]


def main():
    build = pathlib.Path(sys.argv[1])
    problems = []
    count = check_levels(build, problems)
    library = build / "lib" / "libsluice_ops.so"
    if library.exists():
        check_library(library, problems)
    elif (tree.ROOT / "src/ops/CMakeLists.txt").exists():
        problems.append(f"{library} is not built")
    tree.finish(problems, f"{count} objects of {len(LEVELS)} levels, {library.name}")


if __name__ == "__main__":
    main()
