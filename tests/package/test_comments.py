"""Checks that every file mentioned in a comment, docstring or page exists."""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("csrc", "kernels", "python_pkg", "tests", "benchmarks", "tools", "examples", "docs")
CPP = (".h", ".hpp", ".cuh", ".cu", ".cpp")
ENDING = r"\.(?:h|hpp|cuh|cu|cpp|py|md|json|png|sh|patch)(?![\w(/-])"
NAME = re.compile(rf"(?<![\w./<*-])[\w.{{*/-][\w.{{}},*/-]*{ENDING}")
LINK = re.compile(rf"\[`?([\w./-]+{ENDING})`?\]\((?!http)([^)#]+)")
# torch's headers, build products, and placeholders for files of the reader.
ELSEWHERE = ("ATen/", "torch/", "build/", "facts.json", "IMAGE.png", "OLD.json")


@functools.cache
def files() -> tuple[str, ...]:
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")]
    return tuple(p.relative_to(ROOT).as_posix() for p in (*found, *ROOT.glob("*.*")) if p.is_file())


@functools.cache
def ends() -> set[str]:
    parts = [file.split("/") for file in files()]
    return {"/".join(path[start:]) for path in parts for start in range(len(path))}


def prose(suffix: str, text: str) -> str:
    """Returns the comments and docstrings of a source file, or the text of a page without URLs."""
    return "\n".join(_prose(suffix, text))


def _prose(suffix: str, text: str) -> Iterator[str]:
    if suffix in CPP:
        yield from re.findall(r"(?<!:)//(.*)", text)
    elif suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.string
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                yield ast.get_docstring(node) or ""
    else:
        yield re.sub(r"https?://\S+", "", text)


def alternatives(name: str) -> list[str]:
    """Expands braces as a shell does: a name that contains {x,y} gives two names."""
    braces = re.fullmatch(r"(.*)\{(.*)\}(.*)", name)
    return [braces[1] + one + braces[3] for one in braces[2].split(",")] if braces else [name]


def exists(name: str, folder: str) -> bool:
    """Whether `name` is a path from `folder`, or the last parts of the path of any file. `*`
    matches any characters."""
    if "*" in name:
        return any(fnmatch(f"/{file}", f"*/{name}") for file in files())
    return name in ends() or (ROOT / folder / name).is_file()


def missing(text: str, folder: str = ".") -> list[str]:
    """The files that the text mentions but that do not exist."""
    names = [name for found in NAME.findall(text) for name in alternatives(found)]
    return [name for name in names if not name.startswith(ELSEWHERE) and not exists(name, folder)]


def crossed(text: str) -> list[str]:
    """Links whose text names a file other than the target."""
    return [name for name, path in LINK.findall(text) if not f"/{path}".endswith(f"/{name}")]


def read() -> Iterator[tuple[str, str]]:
    """Yields path and prose of each source and page, except the change log and docs/dev/."""
    for file in files():
        page = file in ("README.md", "CONTRIBUTING.md") or re.fullmatch(r"docs/[^/]*\.md", file)
        if page or ("/" in file and file.endswith((*CPP, ".py"))):
            path = ROOT / file
            yield file, prose(path.suffix, path.read_text())


def test_named_files_exist() -> None:
    found = [
        f"{file}: {name}" for file, text in read() for name in missing(text, str(Path(file).parent))
    ]
    assert not found, "\n".join(found)


def test_links_are_called_what_they_lead_to() -> None:
    found = [f"{file}: {name}" for file, text in read() for name in crossed(text)]
    assert not found, "\n".join(found)


def test_missing_names_are_found() -> None:
    assert missing(
        "Twins: csrc/gone.cpp, kernels/elementwise/cpu/{scale,lost}.cpp; moved_*.cuh."
    ) == [
        "csrc/gone.cpp",
        "kernels/elementwise/cpu/lost.cpp",
        "moved_*.cuh",
    ]
    assert missing("elementwise/loop.h, `docs/sine.md`, cluster/*.cuh (see setup.py)") == []
    assert missing("new_op.py") == [] and missing("../new_op.py", "tools/native") == []
    assert missing("ew_op.py") == ["ew_op.py"], "a name must match whole parts of a path"
    assert crossed("[loop.h](csrc/elementwise/loop.h), [old.h](csrc/elementwise/loop.h)") == [
        "old.h"
    ]
    source = 'int x = 1;  // a.h\nconst char* y = "b.h";'
    assert missing(prose(".cpp", source)) == ["a.h"]
    source = '"""c.h"""\nx = "d.h"  # e.h\ndef f():\n    """g.h"""'
    assert sorted(missing(prose(".py", source))) == ["c.h", "e.h", "g.h"]
