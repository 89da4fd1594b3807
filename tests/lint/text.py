"""What no project file may say: package hosts, paths of one machine, unfinished business; dead links; and what libraries may
not call."""
import re

import tree

HOSTS = [name + r"\." + end for name, end in (
    ("py" "pi", "org"), ("python" "hosted", "org"), ("deb" r"\.debian", "org"), ("security" r"\.debian", "org"),
    ("snapshot" r"\.debian", "org"), ("archive" r"\.ubuntu", "com"), ("npm" "js", "(?:org|com)"), ("crates", "io"))]
EVERYWHERE = [
    (re.compile("|".join(HOSTS), re.I), "names a package host"),
    (re.compile(r"(?<![\w./-])/(?:work|root|home)/\w"), "names a path of one machine"),
    (re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b"), "leaves business unfinished"),
    (re.compile(r"\b[Ii]ssue #?\d+"), "points outside the project"),
    (re.compile(r"[ \t]+$", re.M), "trailing blanks"),
]
CODE = [
    (re.compile(r"\bstd::(?:cout|cerr|clog|format)\b|#\s*include\s*<(?:iostream|format|print)>|(?<![\w:.>])(?:f?printf|f?puts|perror)\s*\(|\bfmt::print\b"),
     ("src/apps/", "tools/", "bench/", "tests/"), "prints (or uses <format>, which g++ 12 lacks)"),
    (re.compile(r"\b(?:secure_)?getenv\s*\("), ("src/apps/", "tools/", "bench/", "tests/"), "reads the environment"),
    (re.compile(r"\b(?:rand|srand|gets|strcpy|strcat|sprintf|atoi|atof)\s*\("), (), "calls a function with a better equal"),
    (re.compile(r"\b(?:system|popen)\s*\("), ("tools/", "bench/", "tests/"), "starts a shell"),
    (re.compile(r"\busing\s+namespace\s+(?!sluice|testing|std::(?:string_view_)?literals)"), ("src/kernels/",), "opens a foreign namespace"),
]
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")  # to a file of the project
TEXT_SUFFIXES = {".h", ".cc", ".py", ".md", ".txt", ".cmake", ".json", ".toml", ".yml", ".yaml", ""}


def project_texts():
    for path in sorted(tree.ROOT.rglob("*")):
        relative = path.relative_to(tree.ROOT)
        if path.is_file() and not path.is_symlink() and path.suffix in TEXT_SUFFIXES and not tree.is_foreign(relative):
            if relative.parts[0] != ".git":
                yield relative


def line_of(text, match):
    return text.count("\n", 0, match.start()) + 1


def complaints(path, text):
    for pattern, why in EVERYWHERE:
        for match in pattern.finditer(text):
            yield f"{path}:{line_of(text, match)}: {why}: {match.group(0).strip()!r}"
    if path.suffix == ".md":
        for match in LINK.finditer(text):
            if not (tree.ROOT / path.parent / match.group(1)).exists():
                yield f"{path}:{line_of(text, match)}: links to {match.group(1)}, which is not there"
    if path.suffix not in (".h", ".cc"):
        return
    code = tree.strip_code(text)
    for pattern, places, why in CODE:
        if path.as_posix().startswith(places) or (places and tree.is_test(path)):
            continue
        for match in pattern.finditer(code):
            yield f"{path}:{line_of(code, match)}: {why}: {match.group(0).strip()!r}"
    if path.suffix == ".h" and "#pragma once" not in text:
        yield f"{path}: a header without #pragma once"


def main():
    problems, count = [], 0
    for path in project_texts():
        count += 1
        problems += complaints(path, (tree.ROOT / path).read_text(encoding="utf-8"))
    tree.finish(problems, f"{count} files")


if __name__ == "__main__":
    main()
