"""Write the skeleton of an elementwise op of one tensor: `make new-op NAME=relu2`.

The script writes two new files. To eleven others it adds a few lines like those of the op `sine`.
The result compiles, but the tests of the new op fail until you write the op's formula. The script
prints the places at the end, and docs/write_an_op.md explains them. The texts that the script
writes are in tools/new_op_files.py and tools/new_op_texts.py.
"""

from __future__ import annotations

import argparse
import keyword
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools import new_op_texts as texts  # noqa: E402
from tools.new_op_files import NEW  # noqa: E402

CPP_WORDS = set(
    "alignas auto bool case catch char class const constexpr default delete do double else enum "
    "explicit export extern false float for friend goto if inline int long mutable namespace new "
    "noexcept nullptr operator private protected public register return short signed sizeof static "
    "struct switch template this throw true try typedef typename union unsigned using virtual void "
    "volatile while".split()
)
# Kernels call these functions without std::, so an op of the same name would be called instead.
MATH = set(
    "abs acos acosh asin asinh atan atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs "
    "floor fma fmax fmin fmod frexp hypot ldexp lgamma log log10 log1p log2 lrint max min modf pow "
    "remainder rint round sin sinh sqrt tan tanh tgamma trunc".split()
)


class Refused(Exception):
    """A name is refused; the text says why, and what to do instead."""


def taken(root: Path) -> set[str]:
    """Names that modules, ops and source files already have."""
    schemas = re.findall(r'^    "(\w+)', (root / "csrc/schemas.h").read_text(), re.M)
    folders = ("kernels/math", "csrc/elementwise", "kernels/elementwise", "kernels/elementwise/cpu")
    files = [p.stem for folder in folders for p in (root / folder).iterdir()]
    package = [p.stem for p in (root / "python_pkg/treadle").iterdir()]
    return {*schemas, *files, *package}


def check(name: str, root: Path) -> None:
    if not name:
        raise Refused("NAME must be given, as in `make new-op NAME=relu2`, got none")
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        raise Refused(
            "NAME must be of lower-case letters, digits and single underscores and begin with a "
            f"letter, such as relu2 or soft_sign, got {name!r}"
        )
    if name.endswith(("_backward", "_out")):
        raise Refused(
            f"NAME must be that of the op alone, got {name!r}: its backward and its out= form are "
            "written with it"
        )
    if keyword.iskeyword(name) or name in CPP_WORDS:
        raise Refused(
            f"NAME must not be a keyword of Python or C++, got {name!r}; choose a longer name, "
            "as in my_op"
        )
    if name in MATH:
        raise Refused(
            f"NAME must be no function of <cmath>, which kernels call by that name, got {name!r}; "
            "choose another word, such as sine instead of sin"
        )
    if name in taken(root):
        raise Refused(
            f"NAME must be new, got {name!r}, which already exists; choose another one, or remove "
            "the old op first"
        )


def filled(text: str, name: str) -> str:
    camel = "".join(part.capitalize() for part in name.split("_"))
    return text.replace("@NAME@", name).replace("@CAMEL@", camel)


def insert(text: str, mark: str, lines: str, *, before: bool, path: str) -> str:
    """Adds lines before or after the only line that the pattern `mark` matches."""
    found = list(re.finditer(mark, text, re.M))
    if len(found) != 1:
        raise Refused(
            f"{path} must have one place for the new lines, {mark!r}, got {len(found)}; "
            "mend the pattern in tools/new_op_texts.py"
        )
    at = found[0].start() if before else found[0].end() + 1
    return text[:at] + lines + text[at:]


def sorted_into(text: str, name: str) -> str:
    """Adds one or more names, separated by spaces, to the sorted __all__ of a Python module."""
    found = re.search(r"^__all__ = \[\n(.*?)^\]\n", text, re.M | re.S)
    if found is None:
        raise Refused("a module must have a list __all__ with one name per line, got none")
    names = {*re.findall(r'"(\w+)"', found[1]), *name.split()}
    lines = "".join(f'    "{n}",\n' for n in sorted(names))
    return text[: found.start(1)] + lines + text[found.end(1) :]


def planned(name: str, root: Path) -> dict[str, str]:
    """The text of every file, new or changed. All texts exist before the first file is written."""
    files = {filled(path, name): filled(text, name) for path, text in NEW.items()}
    for path, edits in texts.CHANGED.items():
        text = (root / path).read_text()
        for mark, lines, before in edits:
            text = insert(text, mark, filled(lines, name), before=before, path=path)
        files[path] = text
    for path, names in texts.LISTED.items():
        files[path] = sorted_into(files[path], filled(names, name))
    for path, lines in texts.APPENDED.items():
        files[path] = files[path].rstrip("\n") + "\n" + filled(lines, name)
    return files


@dataclass(frozen=True)
class Skeleton:
    """A command that writes the skeleton of something that has a name."""

    command: str
    about: str  # the first sentence of --help
    of: str  # what the name is
    check: Callable[[str, Path], None]  # refuses names
    planned: Callable[[str, Path], dict[str, str]]  # the text of each file, by path
    following: Callable[[str], str]  # what to do next

    def main(self, arguments: list[str] | None = None) -> int:
        parser = argparse.ArgumentParser(description=self.about)
        parser.add_argument("name", help=self.of)
        parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
        options = parser.parse_args(arguments)
        try:
            self.check(options.name, options.root)
            files = self.planned(options.name, options.root)
        except Refused as refused:
            print(f"{self.command}: {refused}", file=sys.stderr)
            return 2
        for path, text in files.items():
            print(f"{'changed' if (options.root / path).exists() else 'new    '} {path}")
            (options.root / path).write_text(text)
        print(self.following(options.name), end="")
        return 0


main = Skeleton(
    command="new-op",
    about=(__doc__ or "").splitlines()[0],
    of="name of the op, such as relu2",
    check=check,
    planned=planned,
    following=partial(filled, texts.NEXT),
).main


if __name__ == "__main__":
    raise SystemExit(main())
