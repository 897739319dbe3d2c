"""Checks sizes: a file has at most 450 lines, and a function outside tests/ at most 60.

A `__global__` function may be longer, because splitting it would cost registers. A function in
tests/ may be longer, because it may be a table of cases.
"""

from __future__ import annotations

import sys
from pathlib import Path

import lizard

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("kernels", "csrc", "python_pkg", "examples", "benchmarks", "tools")
FOLDERS = (*PRODUCT, "tests")
SUFFIXES = {".h", ".hpp", ".cuh", ".cu", ".cpp", ".py", ".sh"}
FILE_LINES, FUNCTION_LINES = 450, 60


def is_kernel(lines: list[str], start: int) -> bool:
    """Whether `__global__` precedes the name of the function in line `start`."""
    above = lines[max(start - 4, 0) : start]
    return any("__global__" in line for line in above)


def check_file(path: Path, text: str) -> list[str]:
    """Everything that is too long in one file, as "path:line: rule"; `path` is relative to the
    repository."""
    lines = text.splitlines()
    found = []
    if len(lines) > FILE_LINES:
        found.append(f"{path}:{len(lines)}: a file must have at most {FILE_LINES} lines")
    if path.parts[0] not in PRODUCT or path.suffix == ".sh":
        return found
    # lizard detects languages by suffix, and knows neither .cu nor .cuh.
    name = str(path) if path.suffix == ".py" else f"{path}.cpp"
    for function in lizard.analyze_file.analyze_source_code(name, text).function_list:
        if function.length > FUNCTION_LINES and not is_kernel(lines, function.start_line):
            rule = f"{function.name} must have at most {FUNCTION_LINES} lines"
            found.append(f"{path}:{function.start_line}: {rule}, got {function.length}")
    return found


def main() -> int:
    files = sorted(
        path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES
    )
    problems = [
        line for path in files for line in check_file(path.relative_to(ROOT), path.read_text())
    ]
    for line in problems:
        print(line, file=sys.stderr)
    print(f"check_sizes: {len(files)} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
