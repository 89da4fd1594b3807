"""Runs the blocks of a Markdown file that are marked as examples, in order, in one temporary folder.

A block opens with ```sh example or ```python example. The folder has the project's files as links, so that what a reader types
in the project's folder works there, and what the examples make stays out of it. Only build/release is looked at.
Usage: run_examples.py FILE.md PROJECT PYTHON
"""
import pathlib
import re
import subprocess
import sys
import tempfile

BLOCK = re.compile(r"^```(sh|python) example\n(.*?)^```$", re.M | re.S)
SECONDS = 300


def command_of(language, code, python):
    return ["bash", "-euo", "pipefail", "-c", code] if language == "sh" else [python, "-c", code]


def main():
    document, project, python = sys.argv[1:]
    blocks = BLOCK.findall(pathlib.Path(document).read_text())
    if not blocks:
        sys.exit(f"{document}: no block is marked as an example")
    with tempfile.TemporaryDirectory() as folder:
        for item in pathlib.Path(project).iterdir():
            if not item.name.startswith("."):
                (pathlib.Path(folder) / item.name).symlink_to(item)
        for number, (language, code) in enumerate(blocks, 1):
            print(f"--- example {number} ({language})\n{code}", flush=True)
            result = subprocess.run(command_of(language, code, python), cwd=folder, timeout=SECONDS, check=False)
            if result.returncode != 0:
                sys.exit(f"{document}: example {number} ended with {result.returncode}")
    print(f"{len(blocks)} examples ran")


if __name__ == "__main__":
    main()
