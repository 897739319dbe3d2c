"""Which files of csrc/ are compiled together.

What a compiler makes of torch's headers before it reaches a file costs more than most files of
csrc/, so a folder is one unit, or a few where it is large: a source that includes its files. Lines
of errors are those of the files. In a unit, names of anonymous namespaces and of static functions
meet: they are unique in their folder.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from .words import write_if_new

# More files make fewer units, and more to compile again when one of them changes.
FILES_OF_A_UNIT = 7
# Compiled with flags of their own.
APART = {"bindings.cpp", "cuda_missing.cpp"}


def units() -> dict[str, list[Path]]:
    """The files of each unit, by its name: csrc/recurrent's are recurrent-1, recurrent-2, ...

    Sources of CUDA calls are units of their own, with -cuda in their names.
    """
    folders = defaultdict(list)
    for source in sorted(Path("csrc").rglob("*.cpp")):
        if source.name not in APART:
            folders[_folder(source)].append(source)
    return {name: files for folder in folders for name, files in _split(folder, folders[folder])}


def write(name: str, files: list[Path], folder: Path) -> Path:
    """The source of a unit."""
    source = folder / f"{name}.cpp"
    folder.mkdir(parents=True, exist_ok=True)
    write_if_new(source, "".join(f'#include "{file}"\n' for file in files))
    return source


def _folder(source: Path) -> str:
    """The name for its folder; the few files of a family's cuda folders have one."""
    folders = source.parts[1:-1] or ("common",)
    return f"{folders[0]}-cuda" if "cuda" in folders else "-".join(folders)


def _split(folder: str, files: list[Path]) -> list[tuple[str, list[Path]]]:
    """Parts of equal length, as few as there can be."""
    parts = -(-len(files) // FILES_OF_A_UNIT)
    if parts == 1:
        return [(folder, files)]
    ends = [len(files) * part // parts for part in range(parts + 1)]
    return [(f"{folder}-{k + 1}", files[ends[k] : ends[k + 1]]) for k in range(parts)]
