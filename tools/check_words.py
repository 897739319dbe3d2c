"""Checks comments, docstrings, messages and pages against the glossary of CONTRIBUTING.md.

A rule is a pattern that finds a word in one sense, often only in some folders. For example, `split`
is refused only where it means fp16x2. Names are skipped: text in backquotes, and words with `_` or
`/`. In pages, lines of prose must have at most 100 characters, not counting links, tables and code.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
CPP = (".h", ".hpp", ".cuh", ".cu", ".cpp", ".c")
PYTHON = (".py", ".pyi")
HASH = (".sh", ".toml", ".cmake", ".yml", ".yaml", ".txt")
HASH_NAMES = ("Makefile", "run")
# The checker and its test contain the words that they refuse.
LEFT_OUT = ("tools/check_words.py", "tests/package/test_words.py")
LINE_LENGTH = 100
MESSAGE_WORDS = 3  # a string with fewer words is a name or a key


class Rule(NamedTuple):
    """A row of the glossary: `pattern` finds `old` in the refused sense, in paths that match
    `files`."""

    old: str
    new: str
    pattern: str
    files: str = ""


RECURRENT = r"^(kernels|csrc|tests)/recurrent/|^docs/(dev/(how|findings)|recurrent)"
KERNELS = r"^(kernels|csrc)/recurrent/"
GRID = r"^kernels/recurrent/(\w+/)*grid"
RULES = (
    Rule("a comment that begins with Of", "the subject first", r"^(?:[-*|#]\s*)?(?-i:Of)\b"),
    Rule("warps that multiply", "MMA warps", r"\bwarps? that multipl(?:y|ies)\b"),
    Rule("warps that finish", "epilogue warps", r"\bwarps? that finish(?:es)?\b"),
    Rule(
        "split (a float32 into float16 terms)",
        "fp16x2",
        r"\b(?:is|are|was|were|be|not) split\b(?! over)|\bsplit (?:float32|kernels?|numbers)\b"
        r"|\bsplit, 2\d bits",
        RECURRENT,
    ),
    Rule(
        "exact (a float32 product)",
        "fma",
        r"\bexact\b",
        r"^(kernels|csrc)/recurrent/|^docs/(dev/(how|findings)|recurrent)",
    ),
    Rule("words (of a number)", "terms", r"\btwo words (?:each|for a number|a number)\b"),
    Rule("words (of the exchange)", "packets", r"\bwords?\b", GRID),
    Rule(
        "narrow, wide",
        "h512, h1024, h2048",
        r"\b(?:narrow|wide)(?:r|st)?\b",
        r"^kernels/recurrent/(?!lltm_cell)",
    ),
    Rule("alone (one tile)", "single_tile", r"\btiles? alone\b|\balone: of one\b", KERNELS),
    Rule("late (a poll)", "poll_after_store", r"\b(?:is|are) late\b", KERNELS),
    Rule("put back", "clear", r"\b(?:puts?|putting) back\b"),
    Rule("place (of the ring)", "slot", r"\bplaces?\b", GRID),
    Rule(
        "turns",
        "rounds, or alternate",
        r"\b(?:takes?|taking|took) turns\b|\bby turns\b|\bin turns\b(?!\.)",
        r"^(?!kernels/(math|sine_linear)/)",
    ),
    Rule("Group (of rows)", "RowGroup", r"\bturns of groups\b"),
    Rule(
        "group of steps",
        "StepGraph",
        r"\bgroups? of steps\b|\bsteps (?:in|of) (?:a )?groups?\b(?!')",
        r"recurrent",
    ),
    Rule(
        "bar, goal",
        "target",
        r"\b(?:bars?|goals?)\b(?!\.)",
        r"^(benchmarks|tests/benchmarks|docs|README)(?!.*gpu-runs)",
    ),
    Rule("rival", "baseline", r"\brivals?\b"),
    Rule("planted error", "mutant", r"\bplanted (?:errors?|mistakes?|bugs?|ones?)\b"),
    Rule("law", "invariant", r"\blaws?\b"),
    Rule("starts anew", "resets", r"\banew\b"),
    Rule(
        "stops by itself",
        "variable length",
        r"\b(?:stops?|ends?) by (?:itself|themselves)\b",
    ),
    Rule("passes by", "skips", r"\bpass(?:es|ed|ing)? by (?!reference|value|pointer)"),
    Rule(
        "cells (c of all steps)",
        "cell states",
        r"\bcells of all steps\b|\bcells run away\b|\bpull\w*(?: \w+)? cells\b|\blast cells\b",
    ),
)


def dots(match: re.Match[str]) -> str:
    """A string of dots as long as the match, with the same line breaks."""
    return re.sub(r"[^\n]", ".", match[0])


def without_names(text: str) -> str:
    return re.sub(r"`[^`]*`|[\w./-]*[_/][\w./-]*", dots, text)


def comments(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """For each comment or docstring, the line in which it begins, and its text with \\n in it."""
    if path.suffix in CPP:
        found = [(line, part) for line, kind, part in tokens(text) if kind == "comment"]
    elif path.suffix in PYTHON:
        found = [
            (token.start[0], token.string.lstrip("#").strip())
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type == tokenize.COMMENT
        ]
        for node in docstrings(ast.parse(text)):
            yield node.lineno, "\n".join(map(str.strip, str(node.value).splitlines()))
    else:
        lines = enumerate(text.splitlines(), 1)
        found = [(n, m[1]) for n, line in lines if (m := re.search(r"(?:^|\s)# (.*)", line))]
    yield from joined(found)


def joined(found: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Joins comments of adjacent lines."""
    block: list[str] = []
    first = 0
    for line, text in found:
        if block and line == first + len(block):
            block += text.split("\n")
        else:
            if block:
                yield first, "\n".join(block)
            first, block = line, text.split("\n")
    if block:
        yield first, "\n".join(block)


def tokens(text: str) -> Iterator[tuple[int, str, str]]:
    """For each comment or string of a C++ file, its line, its kind and its text."""
    comment, raw = r"//.*|/\*[\s\S]*?\*/", r'R"\([\s\S]*?\)"'
    string, character = r'"(?:\\.|[^"\\\n])*"', r"'(?:\\.|[^'\\\n])'"
    for match in re.finditer(f"{comment}|{raw}|{string}|{character}", text):
        line = text.count("\n", 0, match.start()) + 1
        if match[0].startswith("/"):
            yield line, "comment", "\n".join(row.strip("/* ") for row in match[0].split("\n"))
        elif match[0].endswith('"'):
            yield line, "string", match[0].strip('"')


def docstrings(tree: ast.Module) -> list[ast.Constant]:
    heads = [
        node.body[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and node.body
    ]
    values = [head.value for head in heads if isinstance(head, ast.Expr)]
    return [v for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)]


def messages(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """Strings of several words, which a user may read."""
    found: Iterable[tuple[int, str]] = []
    if path.suffix in CPP:
        found = [(line, part) for line, kind, part in tokens(text) if kind == "string"]
    elif path.suffix in PYTHON:
        tree = ast.parse(text)
        left_out = set(map(id, docstrings(tree)))
        found = [
            (node.lineno, node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in left_out
        ]
    elif path.suffix == ".toml":
        rows = enumerate(text.splitlines(), 1)
        found = [(n, line.partition("=")[2]) for n, line in rows if line.startswith("what")]
    return (part for part in found if len(part[1].split()) >= MESSAGE_WORDS)


def page(text: str) -> str:
    """A page without its code and without the glossary's own rows, with as many lines as before."""
    own = {f"| {rule.old} | {rule.new} |" for rule in RULES}
    text = "\n".join("" if line in own else line for line in text.split("\n"))
    return re.sub(r"^ *```.*?^ *```", dots, text, flags=re.S | re.M)


def long_lines(text: str) -> Iterator[int]:
    for number, line in enumerate(page(text).splitlines(), 1):
        shown = re.sub(r"\]\([^)\s]*\)|https?://\S+|<!--.*?-->", "]", line)
        if len(shown) > LINE_LENGTH and not line.lstrip().startswith(("|", ".", "![")):
            yield number


def check_file(path: Path, text: str) -> list[str]:
    """Every problem in one file, as "path:line: rule"; `path` is relative to the repository."""
    if path.suffix == ".md":
        parts = [(1, page(text))]
    else:
        parts = [*comments(path, text), *messages(path, text)]
    found = set()
    for line, part in parts:
        part = without_names(part)
        for rule in RULES:
            if re.search(rule.files, path.as_posix()):
                for match in re.finditer(rule.pattern.replace(" ", r"\s+"), part, re.I | re.M):
                    at = line + part.count("\n", 0, match.start())
                    said = " ".join(match[0].split())
                    found.add((at, f"{said!r}: {rule.old} -> {rule.new}"))
    if path.suffix == ".md":
        rule_of_length = f"a line of prose must have at most {LINE_LENGTH} characters"
        found |= {(line, rule_of_length) for line in long_lines(text)}
    return [f"{path}:{line}: {said}" for line, said in sorted(found)]


def files() -> list[Path]:
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [Path(name) for name in sorted(set(listed.stdout.splitlines()))]
    kinds = (*CPP, *PYTHON, *HASH, ".md")
    known = [path for path in paths if path.suffix in kinds or path.name in HASH_NAMES]
    return [p for p in known if p.as_posix() not in LEFT_OUT and (ROOT / p).is_file()]


def main() -> int:
    paths = files()
    problems = [line for path in paths for line in check_file(path, (ROOT / path).read_text())]
    for line in problems:
        print(line, file=sys.stderr)
    print(f"check_words: {len(paths)} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
