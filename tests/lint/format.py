"""Every C++ file is as clang-format 19 would write it; scripts/format makes it so."""
import subprocess
import sys

import tree


def main():
    paths = [str(path) for path in tree.files(".h", ".cc")]
    try:
        result = subprocess.run(["clang-format-19", "--dry-run", "--ferror-limit=1", *paths], cwd=tree.ROOT, text=True,
                                stderr=subprocess.PIPE, check=False)
    except FileNotFoundError:
        print("clang-format-19 is not here; scripts/setup installs it")
        sys.exit(77)
    problems = sorted({line.split(":")[0] + ": not formatted; run scripts/format" for line in result.stderr.splitlines()
                       if "clang-format-violations" in line})
    if result.returncode != 0 and not problems:
        problems = result.stderr.splitlines()
    tree.finish(problems, f"{len(paths)} files")


if __name__ == "__main__":
    main()
