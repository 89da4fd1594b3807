"""The project's files, and how a check ends. Shared by the scripts of this folder."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
CODE_FOLDERS = ("src", "tools", "bench", "tests", "fuzz")
NOT_OURS = ("build", ".git", "tests/data", "models")


def files(*suffixes, folders=CODE_FOLDERS):
    """Project files with one of the suffixes, as paths relative to the root, sorted."""
    found = []
    for folder in folders:
        for path in (ROOT / folder).rglob("*"):
            relative = path.relative_to(ROOT)
            if path.suffix in suffixes and path.is_file() and not is_foreign(relative):
                found.append(relative)
    return sorted(found)


def is_foreign(relative):
    text = relative.as_posix()
    return any(text == folder or text.startswith(folder + "/") for folder in NOT_OURS) or "__pycache__" in text


def is_test(path):
    return path.name.endswith(("_test.cc", "_test.h", "_fuzz.cc")) or path.parts[0] in ("tests", "fuzz")


def strip_code(text):
    """C++ source with comments, string and character literals blanked, line numbers kept."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"(?P<tag>[^()\\\s]*)\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])\'(?:\\.|[^\'\\\n])+\'', re.S)

    def blank(match):
        found = match.group(0)
        if found.startswith(("//", "/*")):
            return re.sub(r"[^\n]", " ", found)
        return '"' + re.sub(r"[^\n]", " ", found[1:-1]) + '"'

    return pattern.sub(blank, text)


def finish(problems, summary):
    """Prints what was found and ends the script: 1 when there are problems."""
    for problem in problems:
        print(problem)
    print(f"{len(problems)} problems; {summary}")
    sys.exit(1 if problems else 0)
