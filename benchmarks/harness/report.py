"""Prints rows as tables on the terminal, and compares them with an older run."""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.harness import machine, means
from benchmarks.harness.cases import OURS, Row

COLUMNS = [
    *("", "treadle", "spread", "fastest baseline", "its time", "ratio"),
    *("TB/s (of copy), a step", "beside", "target", "limit", ""),
]
# The ratio of the times of two equal runs differs from 1 by about this much, even on an idle
# machine.
NOISE = 0.03


def clock(microseconds: float) -> str:
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= size:
            return f"{microseconds / size:.3f} {unit}"
    return f"{microseconds:.2f} µs"


def size(count: float) -> str:
    for unit, bits in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << bits:
            return f"{count / (1 << bits):.2f} {unit}"
    return f"{count:.0f} B"


def cells(row: Row) -> list[str]:
    """The fields of one line of the table. Times are medians. The spread is half the interquartile
    range, relative to the median."""
    if "refused" in row:
        return [row["label"], "REFUSED", "", row["refused"], *[""] * 7]
    if "memory" in row:
        return weighed(row)
    ours = row["times"][OURS]
    spread = (ours["q75_us"] - ours["q25_us"]) / (2 * ours["median_us"])
    line = [row["label"], clock(ours["median_us"]), f"±{spread:.1%}"]
    if "fastest_baseline" in row:
        fastest = row["fastest_baseline"]
        line += [fastest, clock(row["times"][fastest]["median_us"]), f"{row['ratio']:.3f}"]
    else:
        line += ["", "", ""]
    line.append(bandwidth(row) or a_step(row))
    beside = [f"{name} {clock(row['times'][name]['median_us'])}" for name in row["yardsticks"]]
    line.append(", ".join(beside))
    target = row.get("target")
    return [
        *line,
        *([target["text"], clock(target["limit_us"]), verdict(row)] if target else [""] * 3),
    ]


def weighed(row: Row) -> list[str]:
    """The fields of a row that measures memory: bytes kept, and the peak."""
    against, target = row["against"], row.get("target")
    line = [row["label"], size(row["memory"][OURS]["kept"]), "", against["name"]]
    line += [size(against["bytes"]), f"{against['ratio']:.3f}", ""]
    found = [
        f"{name} {size(values['kept'])}" if name != OURS else ""
        for name, values in row["memory"].items()
    ]
    found += [
        f"peak of {name} {size(values['peak'])}"
        for name, values in row["memory"].items()
        if "peak" in values
    ]
    line.append(", ".join(filter(None, found)))
    return [
        *line,
        *([target["text"], size(target["limit_bytes"]), verdict(row)] if target else [""] * 3),
    ]


def a_step(row: Row) -> str:
    step = row["times"][OURS].get("us_per_step")
    return "" if step is None else f"{step:.2f} µs"


def bandwidth(row: Row) -> str:
    """TB/s and, if a copy was timed, in brackets the ratio to the copy's TB/s."""
    ours = row["times"][OURS].get("tb_per_s")
    if ours is None:
        return ""
    copy = row["times"].get("copy", {}).get("tb_per_s")
    return f"{ours:.3f}" + (f" ({ours / copy:.3f})" if copy else "")


def verdict(row: Row) -> str:
    word = "reached" if row["target"]["reached"] else "NOT REACHED"
    return word + (" (busy)" if row.get("busy") else "")


def groups(rows: list[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["group"], []).append(row)
    return found


def print_rows(rows: list[Row]) -> None:
    for group, members in groups(rows).items():
        show(group, COLUMNS, [cells(row) for row in members])
    for row in rows:
        for note in row["notes"]:
            print(f"note: {row['key']}: {note}")


def summary(rows: list[Row]) -> list[str]:
    """Everything that went wrong, then the geometric means, and then a line of totals."""
    lines = [f"REFUSED: {row['key']}: {row['refused']}" for row in rows if "refused" in row]
    lines += [
        f"BASELINE WRONG: {row['key']}: {name}: {reason}"
        for row in rows
        for name, reason in row.get("baseline_wrong", {}).items()
    ]
    with_target = [row for row in rows if "target" in row]
    for row in with_target:
        if not row["target"]["reached"]:
            lines.append(f"NOT REACHED: {row['key']}: {means.excess(row):.1%} over the limit")
    busy = sum(row.get("busy", False) for row in rows)
    if busy:
        lines.append(f"{busy} rows were timed while other programs ran: time them again, alone")
    found = means.of(rows)
    lines += [means.sentence(mean) for mean in found]
    reached = sum(row["target"]["reached"] for row in with_target) + sum(
        m["reached"] for m in found
    )
    refused = sum("refused" in row for row in rows)
    targets = len(with_target) + len(found)
    lines.append(f"{len(rows)} rows, {reached} of {targets} targets reached, {refused} refused")
    return lines


def compare(old: dict[str, Any], new: dict[str, Any]) -> list[list[str]]:
    """One line for each row that both runs timed: key, both times, new over old, and a verdict.

    Ratios to the fastest baseline are shown as well, because times are not comparable across
    machines.
    """
    before = {row["key"]: row for row in old["rows"] if "times" in row}
    lines = []
    for row in new["rows"]:
        was = before.get(row["key"])
        if was is None or "times" not in row:
            continue
        a, b = was["times"][OURS], row["times"][OURS]
        change = b["median_us"] / a["median_us"]
        apart = b["q25_us"] > a["q75_us"] or b["q75_us"] < a["q25_us"]
        word = ""
        if apart and abs(change - 1) > NOISE:
            word = "slower" if change > 1 else "faster"
        ratios = [f"{r['ratio']:.3f}" if "ratio" in r else "" for r in (was, row)]
        times = [clock(a["median_us"]), clock(b["median_us"])]
        lines.append([row["key"], *times, f"{change:.3f}", *ratios, word])
    return lines


def print_comparison(old: dict[str, Any], new: dict[str, Any]) -> None:
    lines = compare(old, new)
    title = f"compared with {old['machine']['date']}, {machine.commit(old['machine'])}"
    columns = ["", "old", "new", "new / old", "old ratio", "new ratio", ""]
    show(title, columns, lines)
    for fact in ("cpu", "cores", "gpu", "driver", "torch"):
        a, b = old["machine"].get(fact), new["machine"].get(fact)
        if a != b:
            print(f"note: another {fact}: {a} then, {b} now; compare ratios, not times")
    count = {word: sum(line[-1] == word for line in lines) for word in ("slower", "faster")}
    print(f"{len(lines)} rows in both, {count['slower']} slower, {count['faster']} faster")


def show(title: str, columns: list[str], lines: list[list[str]]) -> None:
    """Prints a table with rich if stdout is a terminal and rich is installed, else plain text."""
    if sys.stdout.isatty():
        try:
            from rich.console import Console
            from rich.table import Table
        except ImportError:
            pass
        else:
            table = Table(title=title, title_justify="left")
            for number, column in enumerate(columns):
                table.add_column(column, justify="left" if number == 0 else "right")
            for line in lines:
                bad = any(cell.startswith(("NOT REACHED", "REFUSED", "slower")) for cell in line)
                table.add_row(*line, style="red" if bad else None)
            Console().print(table)
            return
    everything = [columns, *lines]
    widths = [max(len(line[i]) for line in everything) for i in range(len(columns))]
    print(f"\n{title}")
    for line in everything:
        padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        print(f"  {'  '.join(padded)}".rstrip())
