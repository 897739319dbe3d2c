"""Reads the mutants of tests/mutants/**/*.toml.

    [[mutant]]
    name = "scale_gradient_sign"                # unique among all tables
    what = "scale's gradient has the wrong sign"
    file = "csrc/elementwise/scale.cpp"
    killed_by = 'tests/laws/test_opinfo.py -k "gradients and mul"'     # arguments of pytest
    needs = ["cuda", "full"]                    # optional
    find = 'text that occurs exactly once in the file'
    replace = 'the new text'

A mutant that changes several places has `[[mutant.edits]]`, each with `find` and `replace`. `cuda`
means that it needs a GPU and nvcc. `full` means that the error depends on timing, so that run.py
compiles it with full optimisation. Other mutants are compiled with $TREADLE_CHECK_BUILD, where such
errors may not occur.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
FIELDS = {"name", "what", "file", "killed_by"}
NEEDS = {"cuda", "full"}


class MutantError(Exception):
    """A table is invalid, or a mutant does not fit the sources."""


@dataclass(frozen=True)
class Edit:
    find: str
    replace: str


@dataclass(frozen=True)
class Mutant:
    name: str
    what: str
    file: str
    edits: tuple[Edit, ...]
    killers: tuple[str, ...]
    needs: frozenset[str]
    table: str  # "recurrent/grid"

    @property
    def needs_cuda(self) -> bool:
        return "cuda" in self.needs

    def of(self, text: str) -> str:
        """The text of the file after the mutant's edits."""
        for edit in self.edits:
            count = text.count(edit.find)
            if count != 1:
                raise MutantError(
                    f"{self.name}: `find` must occur once in {self.file}, got {count} times:\n"
                    f"{edit.find}"
                )
            text = text.replace(edit.find, edit.replace)
        return text


def read(text: str, table: str) -> Iterator[Mutant]:
    for entry in tomllib.loads(text).get("mutant", []):
        yield _mutant(entry, table)


def _mutant(entry: dict[str, Any], table: str) -> Mutant:
    name = f"{table}: {entry.get('name', 'a mutant without a name')}"
    of_edits = {"edits"} if "edits" in entry else {"find", "replace"}
    if set(entry) - {"needs"} != FIELDS | of_edits:
        wanted = ", ".join(sorted(FIELDS | of_edits))
        raise MutantError(f"{name}: the fields must be {wanted}, got {', '.join(sorted(entry))}")
    needs = frozenset(entry.get("needs", []))
    if not needs <= NEEDS or ("full" in needs and "cuda" not in needs):
        raise MutantError(f"{name}: needs must be cuda, or cuda and full, got {sorted(needs)}")
    edits = tuple(Edit(e["find"], e["replace"]) for e in entry.get("edits", [entry]))
    if any(edit.find == edit.replace for edit in edits):
        raise MutantError(f"{name}: `replace` must differ from `find`")
    killers = tuple(shlex.split(entry["killed_by"]))
    return Mutant(entry["name"], entry["what"], entry["file"], edits, killers, needs, table)


def read_all() -> list[Mutant]:
    """The mutants of all tables, sorted by name."""
    found: dict[str, Mutant] = {}
    for path in sorted(HERE.rglob("*.toml")):
        for mutant in read(path.read_text(), path.relative_to(HERE).with_suffix("").as_posix()):
            if mutant.name in found:
                raise MutantError(f"{mutant.table}: there are two mutants named {mutant.name}")
            found[mutant.name] = mutant
    return [found[name] for name in sorted(found)]
