"""Snippets of the pages in docs/, for the tests that run them."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def snippets(page: str, language: str = "python") -> list[tuple[str, str]]:
    """The fenced code blocks of a page in this language: (heading above the block, code)."""
    found: list[tuple[str, str]] = []
    heading, fence, code = "", None, ""
    for line in (DOCS / page).read_text().splitlines(keepends=True):
        if line.startswith("```"):
            if fence == language:
                found.append((heading, code))
            fence, code = (line.strip("`\n"), "") if fence is None else (None, "")
        elif fence is not None:
            code += line
        elif line.startswith("#"):
            heading = line.strip("# \n")
    return found
