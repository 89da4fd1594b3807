"""Budgets on length: functions p95 <= 45 lines and none over 100, files p95 <= 500 and none over 800, <= 6 parameters."""
import re

import tree

FUNCTION_P95, FUNCTION_MAX = 45, 100
FILE_P95, FILE_MAX = 500, 800
PARAMETERS_MAX = 6

CONTROL = re.compile(r"\b(?:if|for|while|switch|catch|else|do|try)\b[^;]*$")
TYPE = re.compile(r"\b(?:class|struct|union|enum)\b")
TEMPLATE = re.compile(r"template\s*<")
NOT_A_NAME = {"alignas", "__attribute__", "decltype", "noexcept", "requires", "explicit", "declspec", "operator"}


def skip_angles(text, start):
    """Index after the '>' that closes the '<' at `start`."""
    depth = 0
    for i in range(start, len(text)):
        if text[i] == "<":
            depth += 1
        elif text[i] == ">" and text[i - 1] != "-":
            depth -= 1
            if depth == 0:
                return i + 1
    return len(text)


def without_templates(head):
    match = TEMPLATE.search(head)
    while match:
        head = head[:match.start()] + head[skip_angles(head, match.end() - 1):]
        match = TEMPLATE.search(head)
    return head.strip()


def parameter_list(head):
    """The text between the parentheses that follow the function's name, or None."""
    head = without_templates(head)
    for match in re.finditer(r"([\w~]+|operator\s*(?:\(\)|[^\s\w(]+))\s*\(", head):
        if match.group(1) in NOT_A_NAME:
            continue
        depth = 0
        for i in range(match.end() - 1, len(head)):
            depth += {"(": 1, ")": -1}.get(head[i], 0)
            if depth == 0:
                return head[match.end():i]
    return None


def count_parameters(head):
    inside = parameter_list(head)
    if inside is None or inside.strip() in ("", "void"):
        return 0
    depth, count = 0, 1
    for i, c in enumerate(inside):
        depth += 1 if c in "([{<" else -1 if c in ")]}" or (c == ">" and inside[i - 1] != "-") else 0
        count += c == "," and depth == 0
    return count


def in_initializers(head):
    """Whether a brace after this head initialises a member: `Name(...) : a_(1), b_`."""
    match = re.search(r"\)\s*(?:noexcept\s*)?:(?!:)(.*)$", head, re.S)
    if not match:
        return False
    tail = re.sub(r"\{\}", "()", match.group(1)).rstrip()
    return bool(re.search(r"(?:^|[,:]|\s)\s*[\w:<>, ]*[\w>]$", tail)) and not tail.endswith(")")


def scope_kind(head, outer):
    """What a '{' opens: namespace, type, function, or init (an initialiser, or a block inside a function)."""
    if outer in ("function", "init"):
        return "init"
    text = without_templates(head)
    if re.search(r"\bnamespace\b|extern\s*\"", text):
        return "namespace"
    if text.endswith(("=", ",", "(", "return")) or in_initializers(text):
        return "init"
    if "(" in text and not CONTROL.match(text):
        return "type" if TYPE.match(text) and ")" not in text else "function"
    return "type" if TYPE.search(text) else "init"


def functions(source):
    """Yields (first line, last line, head) of each function defined in C++ source."""
    text = tree.strip_code(source)
    text = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: re.sub(r"[^\n]", " ", m.group(0)), text, flags=re.M)
    stack, head, line, head_line = [], "", 1, 1
    for c in text:
        if c == "{":
            kind = scope_kind(head.strip(), stack[-1][0] if stack else "namespace")
            stack.append((kind, head_line, head))
            head = head + "{" if kind == "init" else ""
        elif c == "}":
            kind, first, opened = stack.pop() if stack else ("init", line, "")
            if kind == "function":
                yield first, line, opened.strip()
            head = opened + "{}" if kind == "init" else ""
        elif c == ";" and (not stack or stack[-1][0] != "init"):
            head = ""
        else:
            if not head.strip() and not c.isspace():
                head, head_line = "", line
            head += c
        line += c == "\n"
        if re.search(r"\b(?:public|private|protected)\s*:$", head[-12:]):
            head = ""


def percentile(values, share):
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * share // 100) - 1)] if ordered else 0


def main():
    problems, function_lines, file_lines = [], [], []
    for path in tree.files(".h", ".cc"):
        source = (tree.ROOT / path).read_text()
        length = source.count("\n")
        file_lines.append(length)
        if length > FILE_MAX:
            problems.append(f"{path}: {length} lines, more than {FILE_MAX}")
        for first, last, head in functions(source):
            function_lines.append(last - first + 1)
            if function_lines[-1] > FUNCTION_MAX:
                problems.append(f"{path}:{first}: a function of {function_lines[-1]} lines, more than {FUNCTION_MAX}")
            if count_parameters(head) > PARAMETERS_MAX:
                problems.append(f"{path}:{first}: {count_parameters(head)} parameters, more than {PARAMETERS_MAX}; use a struct")
    for what, lines, limit in (("functions", function_lines, FUNCTION_P95), ("files", file_lines, FILE_P95)):
        if percentile(lines, 95) > limit:
            problems.append(f"{what}: 95 % have up to {percentile(lines, 95)} lines, more than {limit}")
    summary = [f"{len(lines)} {what}: median {percentile(lines, 50)}, p95 {percentile(lines, 95)}, max {max(lines, default=0)} lines"
               for what, lines in (("functions", function_lines), ("files", file_lines))]
    tree.finish(problems, "; ".join(summary))


if __name__ == "__main__":
    main()
