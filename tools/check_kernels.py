"""Checks rules that no compiler checks: includes between folders, and launches of kernels.

- Files of a family (kernels/<family>, csrc/<family>) include only headers of that family and of
  `common`.
- Files in kernels/ include headers of CUDA, the standard library and kernels/, but never of torch
  or csrc/, because libtreadle_kernels.so must work with every torch version.
- Files in kernels/jax include only kernels.h and XLA's headers. No other folder includes XLA's.
- Every kernel begins with begin_kernel(), which waits for the end of the previous kernel, because
  launches may overlap. A kernel that follows a launch of the same kernel may do independent work
  before it waits.
- Kernels are launched only in kernels/common/launch.cuh; csrc/ has no device code.
- Every launch, and every call of a `cudaError_t launch...` function, passes a stream, and its
  error is returned or checked.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LAUNCHER = Path("kernels/common/launch.cuh")
NEVER_LAUNCHED = Path("kernels/common/fast_math_check.cu")
SUFFIXES = {".h", ".cuh", ".cu", ".cpp"}

INCLUDE = re.compile(r'#\s*include\s*([<"])([^>"\n]+)')
FOREIGN = re.compile(r"(torch|ATen|c10|caffe2|pybind11|csrc|Python)\b")
# Folders of csrc/ whose files may include headers of all families.
FRONT_DOOR = {"include", "compat", "c_api"}
SIDE_DOORS = {
    # The last step of these ops is a sine, which they compute with the CPU loop of the op `sine`.
    (Path("kernels/sine_linear/cpu/sine_linear.cpp"), "kernels/elementwise/cpu/sine.h"),
    (Path("kernels/sine_linear/cpu/jet.cpp"), "kernels/elementwise/cpu/sine.h"),
}
RAW_LAUNCH = re.compile(r"<<<|\bcudaLaunch(?:Cooperative)?Kernel\w*\s*\(|\bcuLaunchKernel\w*\s*\(")
DEVICE_CODE = re.compile(r"__global__|__device__|__shared__")
BEGUN = r"(?:if \(!args\.follows\) )?begin_kernel\(\);"
KERNEL = re.compile(rf"__global__[^;{{]*\((?:[^;{{]|\{{\}})*\)\s*\{{(?!\s*{BEGUN})")
CALL = re.compile(r"\b(\w+)\s*(?:<[^;(){}]*>)?\s*\(")
LAUNCHER_DECLARED = re.compile(r"\bcudaError_t\s+(launch\w*)\s*\(")
HANDLED = re.compile(
    r"\breturn\b|\bcheck(?:_launch)?\s*\(|TREADLE_(?:LAUNCH|ON_CUDA)\(|[^=!<>]=[^=]|\bif\s*\("
)
DECLARED = re.compile(r"\b(?:cudaError_t|auto|void)\s+$")


def strip_comments(text: str) -> str:
    """The text with comments and strings blanked out; line numbers stay the same."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)

    def blank(match: re.Match[str]) -> str:
        return '""' if match[0].startswith('"') else re.sub(r"[^\n]", " ", match[0])

    return pattern.sub(blank, text)


def closing(text: str, start: int) -> int:
    """Index after the bracket that closes the one at `start`."""
    depth = 0
    for index in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if depth == 0:
            return index + 1
    return len(text)


def statement_before(text: str, position: int) -> str:
    """The statement that contains `position`, from its beginning to `position`."""
    return text[max(text.rfind(mark, 0, position) for mark in ";{}") + 1 : position]


def check_launches(path: Path, code: str, launchers: set[str]) -> Iterator[tuple[int, str]]:
    """Launches in `code` that pass no stream, or whose error is ignored."""
    for match in RAW_LAUNCH.finditer(code):
        if path != LAUNCHER:
            yield match.start(), f"kernels are launched through {LAUNCHER} only"
            continue
        if match[0] == "<<<":
            inside = code[match.end() : code.find(">>>", match.end())]
            if inside.count(",") < 3 or "stream" not in inside.rsplit(",", 1)[1]:
                yield match.start(), "a launch must pass a stream"
        elif not re.search(r"\bstream\s*=\s*stream\b", code[: match.start()]):
            yield match.start(), "a launch must pass a stream"
        if not HANDLED.search(statement_before(code, match.start())) and match[0] != "<<<":
            yield match.start(), "the error of a launch must be returned"
    for match in CALL.finditer(code):
        before = statement_before(code, match.start())
        if match[1] not in launchers or DECLARED.search(before):
            continue
        if not HANDLED.search(before):
            yield match.start(), "the error of a launch must be returned or checked"
        arguments = code[match.end() - 1 : closing(code, match.end() - 1)]
        if not re.search(r"\bstream\b|\bgetCurrentCUDAStream\b", arguments):
            yield match.start(), "a launch must pass a stream"


def rooms_open_to(path: Path) -> tuple[str, ...]:
    """The headers that `path` may include, by the beginnings of their paths; () means any."""
    top, room = path.parts[:2]
    if (top, room) == ("kernels", "jax"):
        return ("treadle/kernels.h", "xla/ffi/api/")
    if len(path.parts) == 2 or room in FRONT_DOOR:
        return ("kernels/", "treadle/kernels.h") if top == "kernels" else ()
    if top == "kernels":
        below = {"common": ["common"], "math": ["common", "math"]}
        return tuple(f"kernels/{name}/" for name in below.get(room, ["common", "math", room]))
    if room == "common":
        return ("common/", "kernels/common/", "treadle/")
    of_kernels = (f"kernels/{room}/", "kernels/common/", "kernels/math/")
    return (f"{room}/", "common/", *of_kernels, "treadle/")


def check_includes(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """Includes in `text` that break a rule, for example of a header of another family."""
    rooms = rooms_open_to(path)
    for match in INCLUDE.finditer(text):
        bracket, header = match.groups()
        if path.parts[0] == "kernels" and (foreign := FOREIGN.match(header)):
            yield match.start(), f"kernels/ must not include {foreign[1]}"
            continue
        if header.startswith("xla/") and path.parts[:2] != ("kernels", "jax"):
            yield match.start(), "only kernels/jax includes XLA"
            continue
        ours = bracket == '"' or any((ROOT / top / header).exists() for top in ("", "csrc"))
        if ours and rooms and not header.startswith(rooms) and (path, header) not in SIDE_DOORS:
            home = "/".join(path.parts[:2])
            yield match.start(), f'{home} must not include "{header}", only {", ".join(rooms)}'


def check_file(path: Path, text: str, launchers: set[str]) -> list[str]:
    """Broken rules in one file, as "path:line: rule"; `path` is relative to the repository."""
    found: list[tuple[int, str]] = []
    in_kernels = path.parts[0] == "kernels"
    found += check_includes(path, text)
    code = strip_comments(text)
    if not in_kernels:
        found += [(m.start(), "csrc/ holds no device code") for m in DEVICE_CODE.finditer(code)]
    elif path != NEVER_LAUNCHED:
        unguarded = KERNEL.finditer(code)
        found += [(m.start(), "a kernel must begin with begin_kernel();") for m in unguarded]
    found += check_launches(path, code, launchers)
    return [f"{path}:{text.count(chr(10), 0, at) + 1}: {rule}" for at, rule in sorted(found)]


def main() -> int:
    files = sorted(
        path
        for folder in ("kernels", "csrc")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in SUFFIXES
    )
    if not files:
        print("check_kernels: no sources found", file=sys.stderr)
        return 1
    texts = {path.relative_to(ROOT): path.read_text() for path in files}
    launchers = {name for text in texts.values() for name in LAUNCHER_DECLARED.findall(text)}
    problems = [line for path, text in texts.items() for line in check_file(path, text, launchers)]
    for line in problems:
        print(line, file=sys.stderr)
    print(f"check_kernels: {len(files)} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
