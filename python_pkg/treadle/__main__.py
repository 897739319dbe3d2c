"""``python -m treadle``: reports the build and the versions in use, and tests every op."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from treadle import _build, _report

Table = tuple[str, list[str], list[list[str]]]


def main(arguments: list[str] | None = None, problem: str | None = None) -> int:
    """Prints the report, or what an option asks for. Returns 1 if something is broken, else 0."""
    try:
        status = _answer(arguments, problem)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has ended, as in `python -m treadle | head -n 1`
        # Python flushes stdout again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


def _answer(arguments: list[str] | None, problem: str | None) -> int:
    parser = argparse.ArgumentParser(prog="python -m treadle", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--cmake-prefix", action="store_true", help="print the folder for CMAKE_PREFIX_PATH"
    )
    parser.add_argument("--version", action="store_true", help="print treadle's version")
    parser.add_argument(
        "--bench",
        metavar="FILE",
        nargs="?",
        const="treadle-bench.json",
        help="time LSTM and GRU against torch's on this GPU for two minutes, and write the times "
        "to FILE",
    )
    chosen = parser.parse_args(arguments)
    if chosen.bench and problem is None:
        return _bench(chosen.bench)
    brief = chosen.cmake_prefix or chosen.version
    if brief and problem is None:
        print(_build.cmake_prefix() if chosen.cmake_prefix else _build.facts()["version"])
        return 0
    report = _report.collect(problem)
    if chosen.json:
        print(json.dumps(report, indent=2))
    elif brief:
        print(problem, file=sys.stderr)
    else:
        _print(report)
    return 0 if report["ok"] else 1


def _bench(path: str) -> int:
    import torch

    if not torch.cuda.is_available():
        print("treadle --bench needs a CUDA GPU, and torch sees none", file=sys.stderr)
        return 1
    from treadle import _bench

    return _bench.main(Path(path), torch.device("cuda"))


def _checking(built: dict[str, Any]) -> str:
    return ", compiled for checking" if built.get("for_checking") else ""


def _tables(report: dict[str, Any]) -> list[Table]:
    built, running = report["built"] or {}, report["running"] or {}
    rows = [
        [name, str(built.get(key) or "-"), str(running.get(key) or "-")]
        for name, key in (("torch", "torch"), ("torch's CUDA", "torch_cuda"), ("Python", "python"))
    ]
    tables: list[Table] = [("versions", ["", "built for", "running"], rows)]
    facts = [
        ["treadle", f"{built.get('version', '-')} {built.get('commit') or ''}".strip()],
        ["CUDA toolkit", f"{built.get('cuda') or 'none'}{_checking(built)}"],
        ["CUDA archs", " ".join(built.get("archs", [])) or "none"],
        ["CPU instruction set", str(running.get("isa", "-"))],
        ["C++ compiler", f"{built.get('cxx', '-')}, C++{built.get('cxx_standard', '-')}"],
        ["C++ flags", built.get("cxx_flags", "-")],
        ["CPU kernel flags", built.get("cpu_flags", {}).get(running.get("isa"), "-")],
        ["nvcc flags", built.get("nvcc_flags") or "-"],
    ]
    tables.append(("build", ["", ""], facts))
    gpus = [
        [str(g["index"]), g["name"], g["arch"], f"{g['memory_mib']} MiB", _yes(g["served"])]
        for g in report["gpus"]
    ]
    tables.append(("GPUs", ["", "name", "arch", "memory", "in this build"], gpus))
    ops = [[op["name"], " ".join(op["backends"])] for op in report["ops"]]
    tables.append(("ops", ["torch.ops.treadle", "kernels"], ops))
    tables.append(_self_test_table(report["self_test"]))
    return tables


def _self_test_table(results: list[dict[str, Any]]) -> Table:
    """A table of errors: a row for each op and device, a column for each dtype."""
    dtypes = list(dict.fromkeys(result["dtype"] for result in results))
    rows: dict[tuple[str, str], list[str]] = {}
    for result in results:
        cell = f"{result['error']:.1e}" if result["ok"] else "FAILED"
        rows.setdefault((result["op"], result["device"]), []).append(cell)
    body = [[op, device, *cells] for (op, device), cells in rows.items()]
    return ("self-test: largest error against float64", ["op", "device", *dtypes], body)


def _yes(value: bool) -> str:
    return "yes" if value else "NO"


def _print(report: dict[str, Any]) -> None:
    show = _printer()
    for title, columns, rows in _tables(report):
        if rows:
            show(title, columns, rows)
        else:
            print(f"\n{title}: none")
    print()
    for note in report["notes"]:
        print(f"note: {note}")
    for problem in report["problems"]:
        print(f"BROKEN: {problem}")
    if report["ok"]:
        print(f"ok: {len(report['self_test'])} self-tests of {len(report['ops'])} ops passed")


def _printer() -> Any:
    """Returns a function that prints a table: with rich if it is installed and stdout is a
    terminal, else as plain text."""
    if not sys.stdout.isatty():
        return _show_plain
    try:
        from rich.console import Console
        from rich.table import Table as RichTable
    except ImportError:
        return _show_plain

    def show(title: str, columns: list[str], rows: list[list[str]]) -> None:
        table = RichTable(title=title, title_justify="left", show_header=any(columns))
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*row, style="red" if "FAILED" in row or "NO" in row else None)
        Console().print(table)

    return show


def _show_plain(title: str, columns: list[str], rows: list[list[str]]) -> None:
    lines = [columns, *rows] if any(columns) else rows
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    print(f"\n{title}")
    for line in lines:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print(f"  {'  '.join(padded)}".rstrip())


if __name__ == "__main__":
    raise SystemExit(main())
