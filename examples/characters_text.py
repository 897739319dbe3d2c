"""The text of characters.py: prose that comes with Python and the packages of requirements.txt."""

from __future__ import annotations

import importlib.metadata
import math
import re
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

# Packages with long licence texts. Missing ones are skipped.
PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "matplotlib", "pillow", "setuptools")
LEAST = 20_000
# RARE replaces every character that occurs only once or twice in the training text.
RARE, RARE_COUNT = "\N{REPLACEMENT CHARACTER}", 2
BLOCK, HELD_OUT = 20, 10


def licences() -> Iterator[str]:
    """The licence texts of the installed packages and of Python."""
    for package in PACKAGES:
        try:
            files = importlib.metadata.files(package) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in sorted(files, key=str):
            if re.fullmatch(
                r"(licen[cs]e|notice|copying)[^/]*(?<!\.py)(?<!\.pyc)", file.name, re.I
            ):
                path = Path(str(file.locate()))
                if path.is_file():
                    yield path.read_text("utf-8", errors="replace")
    # Where Python's own licence is installed depends on the system.
    library = Path(sysconfig.get_path("stdlib"))
    for path in (library / "LICENSE.txt", library.parent / "LICENSE.txt"):
        if path.is_file():
            yield path.read_text("utf-8", errors="replace")
            return


def reference() -> Iterator[str]:
    """The chapters of Python's language reference that help() shows."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        return
    for name in sorted(topics):
        yield topics[name]


def find_text() -> str:
    """The default text. Exits the program with advice if this machine has too little text."""
    text = "\n".join(paragraphs([*licences(), *reference()]))
    if len(text) < LEAST:
        sys.exit(
            "characters.py: neither the packages installed here nor Python bring enough text "
            f"({len(text):,} characters of {LEAST:,}); name a text of your own with --text FILE"
        )
    return text


def read_text(path: Path) -> str:
    """The text of the user's file. Exits the program if it is unsuitable."""
    try:
        text = "\n".join(paragraphs([path.read_text("utf-8")]))
    except (OSError, ValueError) as error:
        sys.exit(f"characters.py: cannot read {path}: {error}")
    if len(text) < LEAST:
        sys.exit(
            f"characters.py: {path} has {len(text):,} characters without repeated paragraphs; "
            f"at least {LEAST:,} are needed"
        )
    return text


def paragraphs(texts: Iterable[str]) -> Iterator[str]:
    """Yields each paragraph once, as one line.

    Licences repeat each other, and a held-out paragraph that is also in the training text would be
    too easy to predict.
    """
    seen = set()
    for text in texts:
        for paragraph in re.split(r"\n\s*\n", text):
            line = " ".join(paragraph.split())
            # Compare only letters: copies may differ in dates, brackets and case. A paragraph with
            # few letters is probably a table, not prose, and is left out.
            letters = re.sub(r"[^a-z]", "", line.lower())
            if len(letters) >= max(20, 0.6 * len(line)) and letters not in seen:
                seen.add(letters)
                yield line


def split(text: str) -> tuple[str, str]:
    """The training text and the held-out text, which is every tenth block of paragraphs."""
    lines = text.splitlines(keepends=True)
    # A block has several paragraphs, so that the held-out text also has context. In a small text,
    # blocks are smaller.
    size = max(1, min(BLOCK, len(lines) // (4 * HELD_OUT)))
    parts: tuple[list[str], list[str]] = [], []
    for index, line in enumerate(lines):
        parts[index // size % HELD_OUT == HELD_OUT - 1].append(line)
    return "".join(parts[0]), "".join(parts[1])


def alphabet(text: str) -> str:
    """The characters that a model of this text distinguishes, RARE first."""
    counts = Counter(text)
    return RARE + "".join(sorted(c for c in counts if counts[c] > RARE_COUNT and c != RARE))


def unigram_bits(learnt: str, text: str, characters: str) -> float:
    """Bits per character of a model that knows only each character's frequency."""
    known = set(characters)
    count, asked = (
        Counter(c if c in known else characters[0] for c in part) for part in (learnt, text)
    )
    total = len(learnt) + len(characters)
    return -sum(n * math.log2((count[c] + 1) / total) for c, n in asked.items()) / len(text)
