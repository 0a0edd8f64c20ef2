"""Options of a launch script, read without running it.

Launch scripts are shell: options lie in variables, arrays and continued lines. Assignments of plain text are followed,
`${NAME}` and `${NAME:-default}` replaced; what needs a shell (substitutions, arithmetic, loops) stays as it is written and
is reported, never guessed.
"""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from forensics.loaders.megatron.log import value_of

_ASSIGN = re.compile(r"^\s*(?:export\s+|declare\s+(?:-\w+\s+)*|local\s+|readonly\s+)*([A-Za-z_]\w*)(\+?)=(.*)$", re.DOTALL)
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)(?:\[[@*]\])?(?::?-([^}]*))?\}|\$([A-Za-z_]\w*)")
_NAKED = re.compile(r"\$\(\([^$()]{1,200}\)\)")  # names inside need no dollar sign
_ARITHMETIC = re.compile(r"\$\(\(([\d\s()+*/%-]{1,200})\)\)")
_SIGNS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_OPTION = re.compile(r"--([A-Za-z][\w-]*)(?:=(.*))?$", re.DOTALL)
_UNKNOWN = re.compile(r"[$`]|[<>].*[<>]")
_LISTS = frozenset(
    ["data_path", "train_data_path", "valid_data_path", "test_data_path", "rampup_batch_size", "iterations_to_skip", "split", "step_batch_size_schedule"]
)
DEPTH = 20


@dataclass
class Script:
    """What a launch script gives.

    Attributes:
        args: option (dashes as underscores) -> value.
        unknown: options whose value needs a shell, as written.
    """

    args: dict[str, Any] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)


def is_script(text: str) -> bool:
    """Whether a text looks like a launch script: options of the trainer on a command line."""
    return len(re.findall(r"--(?:seq-length|train-iters|train-samples|global-batch-size|micro-batch-size|data-path|num-layers)\b", text)) >= 2


def read_script(text: str) -> Script:
    """Options of the last command line that holds each; later ones win, as they do for the trainer."""
    variables: dict[str, str] = {}
    loose: list[str] = []
    for statement in _statements(text):
        found = _ASSIGN.match(statement)
        if found and (value := _assigned(found[3])) is not None:
            name = found[1]
            variables[name] = f"{variables.get(name, '')} {value}".strip() if found[2] else value
        else:
            loose.append(statement)
    out = Script()
    held = [v for v in variables.values() if _OPTION.search(v.split(" ")[0] if v else "")]
    for line in [*held, *loose]:
        _options(_expand(line, variables), out)
    return out


def _statements(text: str) -> list[str]:
    """Lines with continuations joined, comments cut, arrays and quotes over several lines kept whole."""
    out: list[str] = []
    open_: list[str] = []
    for line in re.sub(r"\\\r?\n", " ", text).split("\n"):
        open_.append(re.sub(r"(^|\s)#.*$", r"\1", line) if "'" not in line and '"' not in line.split("#")[0] else _cut_comment(line))
        joined = "\n".join(open_)
        waits = _ASSIGN.match(joined) and (_depth(joined) > 0 or joined.count('"') % 2 or joined.count("'") % 2)
        if not waits or len(open_) > 500:
            out += joined.split(";") if re.match(r"\s*[A-Za-z_]\w*=[^\"'();]*;", joined) else [joined]
            open_ = []
    return [s for s in [*out, "\n".join(open_)] if s.strip()]


def _cut_comment(line: str) -> str:
    quote = ""
    for i, c in enumerate(line):
        if quote:
            quote = "" if c == quote else quote
        elif c in "'\"":
            quote = c
        elif c == "#" and (i == 0 or line[i - 1].isspace()):
            return line[:i]
    return line


def _depth(text: str) -> int:
    head = text.split("=", 1)[1].lstrip() if "=" in text else ""
    return head.count("(") - head.count(")") if head.startswith("(") else 0


def _assigned(raw: str) -> str | None:
    """The text of an assignment; an array becomes its words; None where it takes a shell to know it."""
    raw = raw.strip().rstrip(";").rstrip()
    if raw.startswith("$((") and raw.endswith("))"):
        return "".join(raw.split())
    if raw.startswith("(") and raw.endswith(")"):
        return " ".join(raw[1:-1].split())
    if raw[:1] in "\"'" and len(raw) > 1 and raw.endswith(raw[0]) and raw.count(raw[0]) == 2:
        return " ".join(raw[1:-1].split())
    return raw if raw and not re.search(r"\s", raw) else None if raw else ""


def _expand(text: str, variables: dict[str, str]) -> str:
    """Known variables replaced, a few levels deep; unknown ones stay as written."""

    def value(m: re.Match[str]) -> str:
        name = m[1] or m[3]
        return variables.get(name) or (m[2] if m[2] is not None else variables.get(name, m[0]))

    def naked(m: re.Match[str]) -> str:
        return re.sub(r"[A-Za-z_]\w*", lambda n: variables.get(n[0], n[0]), m[0])

    for _ in range(DEPTH):
        new = _ARITHMETIC.sub(_calculated, _NAKED.sub(naked, _VARIABLE.sub(value, text)))
        if new == text or len(new) > 1 << 20:
            break
        text = new
    return text


def _calculated(m: re.Match[str]) -> str:
    """`$((8 * 2))` worked out: whole numbers and + - * / % alone; anything else stays as written."""

    def number(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in _SIGNS:
            return _SIGNS[type(node.op)](number(node.left), number(node.right))
        raise ValueError(m[0])

    try:
        return str(number(ast.parse(m[1].strip(), mode="eval").body))
    except (ValueError, SyntaxError, ZeroDivisionError, RecursionError, MemoryError):
        return m[0]


def _options(text: str, out: Script) -> None:
    try:
        words = shlex.split(text, posix=True)
    except ValueError:
        words = text.split()
    at = 0
    while at < len(words):
        found = _OPTION.match(words[at])
        at += 1
        if not found:
            continue
        values = [found[2]] if found[2] is not None else []
        while found[2] is None and at < len(words) and not _OPTION.match(words[at]) and words[at] not in ("&", "|", "&&", ";", ">", "2>&1"):
            values.append(words[at])
            at += 1
        name = found[1].replace("-", "_")
        out.unknown.pop(name, None)
        out.args.pop(name, None)
        if any(_UNKNOWN.search(v) for v in values):
            out.unknown[name] = " ".join(values)
        else:
            out.args[name] = _typed(name, values)


def _typed(name: str, values: list[str]) -> Any:
    if not values:
        return True
    if name in _LISTS and name not in ("split", "step_batch_size_schedule"):
        return values
    if name in ("split", "step_batch_size_schedule"):
        return " ".join(values)
    return value_of(values[0]) if len(values) == 1 else values
