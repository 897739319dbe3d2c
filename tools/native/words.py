"""Words of command lines and of ninja files."""

from __future__ import annotations

import os
import shlex
from pathlib import Path


def write_if_new(path: Path, text: str) -> None:
    """A file that has this text already keeps its time, and so what is made of it."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def from_env(name: str) -> list[str]:
    return shlex.split(os.environ.get(name, ""))


def quote(word: str | Path) -> str:
    return shlex.quote(str(word))


def escape(path: Path) -> str:
    """A path as ninja wants it."""
    return str(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")
