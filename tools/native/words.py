"""Helpers for command lines and ninja files: writing, splitting, quoting and escaping."""

from __future__ import annotations

import os
import shlex
from pathlib import Path


def write_if_new(path: Path, text: str) -> None:
    """Write the file only if its text changes. Otherwise it keeps its modification time, and ninja
    rebuilds nothing."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def from_env(name: str) -> list[str]:
    return shlex.split(os.environ.get(name, ""))


def quote(word: str | Path) -> str:
    return shlex.quote(str(word))


def escape(path: Path) -> str:
    """A path, escaped for ninja."""
    return str(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")
