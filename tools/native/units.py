"""Selects the files of csrc/ that are compiled together.

Parsing torch's headers takes longer than compiling most files of csrc/. So the files of a folder
are compiled as a unit: one source that includes them all. A large folder has several units.
Compiler errors refer to lines of the included files. The files of a unit share one scope, so the
names of static functions, and names in anonymous namespaces, must be unique in their folder.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from .words import write_if_new

# With more files per unit, a full build is faster, but a change recompiles more.
FILES_OF_A_UNIT = 7
# These files are compiled separately, with other flags.
APART = {"bindings.cpp", "cuda_missing.cpp"}


def units() -> dict[str, list[Path]]:
    """The files of each unit, by the unit's name, such as recurrent-1 for csrc/recurrent.

    Sources in folders named cuda are in separate units, whose names end with -cuda.
    """
    folders = defaultdict(list)
    for source in sorted(Path("csrc").rglob("*.cpp")):
        if source.name not in APART:
            folders[_folder(source)].append(source)
    return {name: files for folder in folders for name, files in _split(folder, folders[folder])}


def write(name: str, files: list[Path], folder: Path) -> Path:
    """Writes a source that includes all ``files``."""
    source = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    write_if_new(source, "".join(f'#include "{file}"\n' for file in files))
    return source


def _folder(source: Path) -> str:
    """The name of a folder's unit. All cuda folders of a family share a name, because they have few
    files."""
    folders = source.parts[1:-1] or ("common",)
    return f"{folders[0]}-cuda" if "cuda" in folders else "-".join(folders)


def _split(folder: str, files: list[Path]) -> list[tuple[str, list[Path]]]:
    """Splits the list into as few parts of about equal length as possible."""
    parts = -(-len(files) // FILES_OF_A_UNIT)
    if parts == 1:
        return [(folder, files)]
    ends = [len(files) * part // parts for part in range(parts + 1)]
    name, suffix = folder.removesuffix("-cuda"), "-cuda" if folder.endswith("-cuda") else ""
    return [(f"{name}-{k + 1}{suffix}", files[ends[k] : ends[k + 1]]) for k in range(parts)]
