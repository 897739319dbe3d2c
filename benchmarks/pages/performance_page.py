"""Makes the generated blocks and the picture of docs/performance.md from all committed results.

    python benchmarks/pages/performance_page.py                 draw docs/figures/speed.png
    python benchmarks/pages/performance_page.py --output DIR    draw speed.png in another folder

`make readme-numbers` writes the blocks. The baselines on this page are other people's code: torch,
torch.compile, Triton, CuPy. docs/dev/targets.md has targets, and also compares our algorithms with
each other and with loops over our cells.
"""

from __future__ import annotations

import argparse
import io
import math
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.pages import jets_page, sine_linear_page, sine_page, targets_page  # noqa: E402
from benchmarks.pages.sweep_page import MODES, distinct, found, number, plain  # noqa: E402
from benchmarks.pages.tables import (  # noqa: E402
    Machine,
    Row,
    filled,
    gpu_name,
    line,
    links,
    machines,
    of,
    runs,
    table,
)

PAGE = ROOT / "docs" / "performance.md"
PICTURE = ROOT / "docs" / "figures" / "speed.png"
COLOURS = 256
CELLS, MODELS, WIDE = "sweep_cells", "models", "sweep_wide"
OTHER_GPUS = "sweep_other_gpus"
NONE_YET = targets_page.NONE_YET
NO_MODELS = "They have not been measured yet: `benchmarks/gpu.sh OUTDIR bench --suite models`."
# Ratios of times. A row counts as slower if its ratio is above SLOWER: two runs of one program
# differ by less. Rows of a CPU are listed individually only above MUCH_SLOWER.
SLOWER, MUCH_SLOWER = 1 + targets_page.NOISE, 1.2
MOST_OF_A_SUITE = 2
SINE_DTYPES = ("float32", "bfloat16")
OURS = "treadle"
OWN = re.compile(r"treadle|algorithm |loop of lltm_cell|call by call|torch\.ops")
DIGITS = ("bfloat16", "float16", "float32", "float32, tf32")
# Groups of targets_page.groups, in the order of the table, and their baselines.
ELEMENTWISE = {
    "1 GiB a tensor": "torch, `torch.compile`, Triton, CuPy",
    "elementwise": "torch",
    "elementwise, in cache": "torch",
    "sine and cosine of large arguments": "torch",
    "views and mixed dtypes": "torch",
    "snake": "plain PyTorch, `torch.compile`",
    "call overhead": "torch",
}


def name(facts: dict[str, Any]) -> str:
    if gpu := gpu_name(facts):
        return gpu
    cpu = facts["cpu"].replace("(R)", "").replace(" Processor", "")
    return f"{cpu}, {facts['cores']} cores"


def torchs(row: Row) -> str:
    return f"nn.{row['op'].upper()}"


def outside(row: Row) -> dict[str, float]:
    """The times of baselines that are other people's code and compute the same function."""
    times = row.get("times", {})
    return {
        other: time["median_us"]
        for other, time in times.items()
        if other not in row.get("yardsticks", []) and not OWN.match(other)
    }


def over(row: Row) -> float | None:
    """Our time divided by the fastest baseline's."""
    others = outside(row)
    if not others:
        return None
    return float(row["times"][OURS]["median_us"] / min(others.values()))


def first_gpu(all_machines: Iterable[Machine]) -> Machine | None:
    return next((machine for machine in all_machines if machine[1]["device"] == "cuda"), None)


def headed(machine: Machine, keys: str | tuple[str, ...]) -> str:
    """The machine, and links to its files with rows of these keys."""
    _, facts, _ = machine
    files = next(iter(runs([machine], keys)), ([], []))[0]
    return f"{name(facts)}, {links((path for path, _ in files), PAGE.parent)}:"


def layers(all_machines: list[Machine]) -> Iterator[str]:
    """A table of LSTM and GRU by shape, with ours / torch's µs per step, and a sentence about large
    batches."""
    machine = first_gpu(all_machines)
    if machine is None or not of(machine[2], CELLS):
        yield NONE_YET
        return
    rows = of(machine[2], CELLS)
    yield headed(machine, f"cuda/{CELLS}/")
    columns = [(digits, mode) for digits in DIGITS for mode in MODES]
    yield ""
    yield from table("B,T,H", *(f"{digits}, {mode}" for digits, mode in columns))
    for cell in distinct(rows, "op"):
        own = [row for row in rows if row["op"] == cell]
        for what in distinct(own, "what"):
            cells = [found(own, what=what, digits=digits, mode=mode) for digits, mode in columns]
            text = (plain(row, OURS, torchs(own[0])) for row in cells)
            yield line(f"{cell.upper()} {what}", *text)
    yield ""
    yield from many_rows(of(machine[2], WIDE))


def many_rows(rows: list[Row]) -> Iterator[str]:
    """A sentence about large batches, for which a table would be too long."""
    parts = []
    for cell in ("lstm", "gru"):
        own = [row for row in rows if row["op"] == cell]
        speeds = [1 / ratio for ratio in map(over, own) if ratio is not None]
        if speeds:
            parts.append(f"{cell.upper()} {spread(speeds)} over {len(speeds)} rows")
    if parts:
        yield (
            "For batches of 512 to 16,384 rows, 24 steps and H 64 to 512, the median speed "
            f"relative to torch's (worst to best) is: {'; '.join(parts)}. The picture shows each "
            "row."
        )


def spread(speeds: list[float]) -> str:
    low, middle, high = (number(f(speeds)) for f in (min, statistics.median, max))
    return f"{middle} × ({low} to {high})"


def call(row: Row | None) -> str:
    """The time of a call in milliseconds, and its speed relative to torch."""
    if row is None or "refused" in row:
        return plain(row)
    text = f"{number(row['times'][OURS]['median_us'] / 1000)} ms"
    if torchs(row) in row.get("baseline_wrong", {}):
        return f"{text} (torch's result is wrong)"
    ratio = over(row)
    return text if ratio is None else f"{text} ({number(1 / ratio)} ×)"


def models(all_machines: list[Machine]) -> Iterator[str]:
    """A table of the recurrent layers of public models, on the first GPU that ran them."""
    for machine in all_machines:
        rows = [row for row in of(machine[2], MODELS) if "what" in row]
        if not rows or machine[1]["device"] != "cuda":
            continue
        yield headed(machine, f"cuda/{MODELS}/")
        yield ""
        columns = [(digits, mode) for digits in distinct(rows, "digits") for mode in MODES]
        titles = [f"{digits}, {mode}" for digits, mode in columns]
        yield from table("model (project)", "B,T,I,H", *titles)
        for what in distinct(rows, "what"):
            own = [row for row in rows if row["what"] == what]
            cells = [found(own, digits=digits, mode=mode) for digits, mode in columns]
            sizes = ",".join(map(str, own[0]["shape"]))
            form = ", ".join(filter(None, [f"{own[0]['op'].upper()} {sizes}", own[0]["form"]]))
            yield line(f"{what} ({own[0]['project']})", form, *map(call, cells))
        return
    yield NO_MODELS


def slower(all_machines: list[Machine]) -> Iterator[str]:
    """A table of the rows that are slower than a baseline: the worst ones of each suite. For a CPU
    it has only rows that are much slower."""
    yield from table("machine", "row", "treadle, µs", "baseline, µs", "treadle / baseline")
    rest = []
    for _, facts, rows in all_machines:
        if facts.get("imposed_gpu"):
            continue  # docs/other_gpus.md has these rows
        ratios = [(over(row) or 0.0, row) for row in rows]
        lost = sorted(((r, row) for r, row in ratios if r > SLOWER), key=lambda pair: -pair[0])
        shown = [pair for pair in lost if facts["device"] == "cuda" or pair[0] > MUCH_SLOWER]
        listed: Counter[str] = Counter()
        for ratio, row in shown:
            suite = row.get("suite", "")
            listed[suite] += 1
            if listed[suite] > MOST_OF_A_SUITE:
                continue
            others = outside(row)
            best = min(others, key=lambda other: others[other])
            ours = number(row["times"][OURS]["median_us"])
            key = row["key"].partition("/")[2]
            yield line(name(facts), key, ours, f"{best}: {number(others[best])}", f"{ratio:.2f}")
        compared = sum(ratio > 0 for ratio, _ in ratios)
        if compared:
            more = f", {len(lost) - len(shown)} of them by less than 20 %" if lost != shown else ""
            rest.append(f"{name(facts)}: {len(lost)} of {compared} rows{more}")
    yield ""
    yield (
        f"Rows that are slower than the fastest baseline by more than 3 %: {'; '.join(rest)}. The "
        f"table lists the {MOST_OF_A_SUITE} worst rows of each suite; "
        "[dev/targets.md](dev/targets.md) lists all of them."
    )


def elementwise(all_machines: list[Machine]) -> Iterator[str]:
    """A table with a line for each group of ops and a column for each machine that timed one."""
    columns = []
    for _, facts, rows in all_machines:
        groups = targets_page.groups(rows)
        if any(what in groups for what in ELEMENTWISE):
            columns.append((name(facts), groups))
    yield from table("what", "baselines", *(title for title, _ in columns))
    for what, baselines in ELEMENTWISE.items():
        cells = []
        for _, groups in columns:
            speeds = [1 / ratio for ratio in map(over, groups.get(what, [])) if ratio is not None]
            cells.append(f"{spread(speeds)}, {len(speeds)} rows" if speeds else "")
        yield line(what, baselines, *cells)


def sine(all_machines: list[Machine]) -> Iterator[str]:
    """The speed table of sine.md, for two dtypes."""
    machine = first_gpu(all_machines)
    timed = sine_page.by_argument(machine[2]) if machine else []
    timed = [row for row in timed if row["dtype"] in SINE_DTYPES]
    if not timed or machine is None:
        yield sine_page.NO_SPEEDS
        return
    yield from sine_page.speed_table(timed)


def sine_layer(all_machines: list[Machine]) -> Iterator[str]:
    """A table of our speed relative to torch.compile and to plain PyTorch, by dtype and pass. Each
    entry is for all widths together."""
    machine = first_gpu(all_machines)
    rows = [
        row
        for row in (machine[2] if machine else [])
        if row["key"].startswith(sine_linear_page.LAYER) and "times" in row
    ]
    if not rows or machine is None:
        yield sine_linear_page.NO_SPEEDS
        return
    groups: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        _, dtype, what, *_ = row["key"].removeprefix(sine_linear_page.LAYER).split("/")
        groups.setdefault(dtype, {}).setdefault(what, []).append(row)
    passes = ("forward", "forward + backward")
    baselines = {
        "`torch.compile`": sine_linear_page.COMPILED,
        "plain PyTorch": sine_linear_page.EAGER,
    }
    columns = [(what, baseline) for what in passes for baseline in baselines]
    yield from table("dtype", *(f"{what}, against {baseline}" for what, baseline in columns))
    for dtype, own in groups.items():
        cells = []
        for what, baseline in columns:
            speeds = (
                sine_linear_page.times_as_fast(row, baselines[baseline])
                for row in own.get(what, [])
            )
            known = [speed for speed in speeds if speed is not None]
            cells.append(spread(known) if known else "–")
        yield line(dtype, *cells)


def jets(all_machines: list[Machine]) -> Iterator[str]:
    """A table of our times, our speed relative to each baseline, and the peak memory of a step
    relative to autograd's."""
    machine = first_gpu(all_machines)
    rows = [row for row in (machine[2] if machine else []) if row["key"].startswith("cuda/jets/")]
    if not rows or machine is None:
        yield jets_page.NO_SPEEDS
        return
    by_key = {row["key"]: row for row in rows}
    names = ("autograd", "torch.func", "torch.func, compiled")
    yield from table(
        "network, dtype, task", "ms", *(f"× {other}" for other in names), "memory / autograd's"
    )
    for row in rows:
        if "times" not in row or row["label"].endswith("no training"):
            continue
        times = {other: time["median_us"] for other, time in row["times"].items()}
        speeds = [number(times[n] / times[OURS]) if n in times else "–" for n in names]
        weighed = by_key.get(f"{row['key']}/memory", {}).get("memory")
        share = f"{weighed[OURS]['kept'] / weighed['autograd']['kept']:.0%}" if weighed else ""
        yield line(row["label"], f"{times[OURS] / 1000:.3g}", *speeds, share)


def measured_on(all_machines: list[Machine]) -> Iterator[str]:
    """A line for each machine, with a link to its folder. The files there record the measured
    commits."""
    for paths, facts, rows in all_machines:
        if facts.get("imposed_gpu"):
            continue  # docs/other_gpus.md links to these folders
        busy = sum(bool(row.get("busy")) for row in rows)
        note = f", {busy} of them while other programs ran" if busy else ""
        folder = links([paths[0].parent], PAGE.parent) if paths else "no files"
        yield (
            f"- {name(facts)}: {folder}, torch {facts['torch']}, measured until "
            f"{facts['date'][:10]}, {len(rows)} rows{note}."
        )


BLOCKS: dict[str, Callable[[list[Machine]], Iterator[str]]] = {
    "layers": layers,
    "models": models,
    "slower": slower,
    "sine": sine,
    "elementwise": elementwise,
    "sine_layer": sine_layer,
    "jets": jets,
    "machines": measured_on,
}


def rewritten(text: str, all_machines: list[Machine]) -> str:
    """The page with its generated blocks."""

    def bound(make: Callable[[list[Machine]], Iterator[str]]) -> Callable[[], Iterator[str]]:
        return lambda: make(all_machines)

    return filled(PAGE, text, {key: bound(make) for key, make in BLOCKS.items()})


# ---- the picture


def order(what: str) -> tuple[int, ...]:
    """A key that sorts shapes by H, then by B, then by T."""
    b, t, h = map(int, what.split(","))
    return h, b, t


def draw(machine: Machine, path: Path) -> None:
    """Draws one heat map per cell, with a row per shape and a column per dtype and mode. Colours
    and numbers show the speed relative to torch's."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from PIL import Image

    rows = [row for row in of(machine[2], CELLS) + of(machine[2], WIDE) if over(row) is not None]
    wide = {row["what"] for row in rows if row["suite"] == WIDE}
    shapes = sorted(distinct(rows, "what"), key=lambda what: (what in wide, order(what)))
    figure, panels = plt.subplots(1, 2, figsize=(9.6, 1.2 + 0.2 * len(shapes)), sharey=True)
    figure.set_layout_engine("constrained")
    image = None
    for axes, cell in zip(panels, ("lstm", "gru"), strict=True):
        own = [row for row in rows if row["op"] == cell]
        image = panel(axes, own, shapes)
        axes.set_title(f"{cell.upper()}, times nn.{cell.upper()}'s speed", fontsize=10, loc="left")
    panels[0].set_yticks(range(len(shapes)), shapes, fontsize=7)
    panels[0].set_ylabel("B,T,H")
    if image is not None:
        bar = figure.colorbar(image, ax=panels, shrink=0.4, pad=0.01)
        bar.set_ticks(range(-1, 6), labels=[f"{2.0**tick:g} ×" for tick in range(-1, 6)])
    figure.suptitle(name(machine[1]), fontsize=10, x=0.01, ha="left")
    file = io.BytesIO()
    figure.savefig(file, dpi=100)
    plt.close(figure)
    with Image.open(file) as made:
        made.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


def panel(axes: Any, rows: list[Row], shapes: list[str]) -> Any:
    from matplotlib.colors import TwoSlopeNorm

    columns = [(digits, mode) for digits in DIGITS for mode in MODES]
    grid = [[math.nan] * len(columns) for _ in shapes]
    for row in rows:
        column = columns.index((row["digits"], row["mode"]))
        speed = 1 / (over(row) or math.nan)
        grid[shapes.index(row["what"])][column] = math.log2(speed)
        text = number(speed) if speed < 10 else f"{speed:.0f}"
        dark = speed > 8
        style = {"fontsize": 6.5, "ha": "center", "va": "center"}
        axes.text(
            column, shapes.index(row["what"]), text, color="white" if dark else "black", **style
        )
    # White means that both are equally fast, blue that ours is faster, red that it is slower.
    scale = TwoSlopeNorm(0, -1, 5)
    axes.set_facecolor("0.92")  # not measured
    image = axes.imshow(grid, cmap="RdBu", norm=scale, aspect="auto")
    labels = [f"{digits.replace('float', 'fp').replace('bfp', 'bf')}, {m}" for digits, m in columns]
    axes.set_xticks(range(len(columns)), labels, rotation=60, ha="right", fontsize=7)
    axes.tick_params(length=0)
    return image


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=PICTURE.parent, metavar="DIR")
    output = parser.parse_args(arguments).output
    machine = first_gpu(machines())
    if machine is None:
        print(NONE_YET, file=sys.stderr)
        return 1
    draw(machine, output / PICTURE.name)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
