"""The arithmetic of docs/dev/scaling.md: known cases of each formula, and the generated tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.pages import readme_numbers, scale_page
from benchmarks.pages.scale_page import (
    BEGIN,
    BETWEEN,
    NODE,
    NVLINK,
    REACHED,
    WITHIN,
    Layer,
    all_reduce,
    data_parallel,
    layer_pipeline,
    sequence_pipeline,
)

LAYER = Layer(batch=64, steps=256, hidden=1024, forward=1e-3, backward=2e-3)
AT_ONCE = Layer(1, 1, 1, 0.0, 0.0)
ENDS = all_reduce(256 * 1024 * 4, 8)


def test_all_reduces() -> None:
    assert all_reduce(1e9, 1) == 0
    # Each of two GPUs sends half of the bytes twice: first its summands, then the sum.
    within = BEGIN + 2 * WITHIN["ring"]
    assert all_reduce(1e9, 2) == pytest.approx(within + 1e9 / (REACHED * NVLINK))
    # In trees, data goes up and down, with seven steps in each node and six among 64 nodes.
    most = BEGIN + 2 * 7 * WITHIN["tree"] + 2 * 6 * BETWEEN
    assert all_reduce(0, 64 * NODE) == pytest.approx(most)
    sizes = [all_reduce(1e8, 2**k) for k in range(10)]
    assert sizes == sorted(sizes)


def test_gradients_of_a_layer() -> None:
    import torch

    layer = torch.nn.LSTM(32, 32, device="meta")
    count = sum(p.numel() for p in layer.parameters())
    assert Layer(1, 1, 32, 0, 0).gradients == 4 * count


def test_data_parallelism() -> None:
    assert data_parallel(LAYER, 4, 1) == data_parallel(LAYER, 4, 1, overlap=False) == 4 * 3e-3
    own = all_reduce(LAYER.gradients, 8)
    assert own < LAYER.backward
    # The backward pass of the previous layer hides a layer's transfer, but not the first layer's.
    assert data_parallel(LAYER, 4, 8) == pytest.approx(4 * 3e-3 + own + ENDS)
    assert data_parallel(LAYER, 4, 8, overlap=False) == pytest.approx(4 * (3e-3 + own) + 2 * ENDS)
    # Without a backward pass that hides the transfer, overlap gains nothing.
    quick = Layer(64, 256, 1024, 0.0, 0.0)
    times = [data_parallel(quick, 4, 8, overlap) for overlap in (True, False)]
    assert times[0] == pytest.approx(times[1]) == pytest.approx(4 * own + 2 * ENDS)


def test_pipelines() -> None:
    assert layer_pipeline(LAYER, 1, AT_ONCE) == pytest.approx(3e-3)
    # If a chunk takes as long as the whole sequence, nothing is gained, because the GPUs run one
    # after the other.
    output = 2 * 64 * 256 * 1024 / (REACHED * NVLINK)
    send = BEGIN + WITHIN["ring"] + output
    assert layer_pipeline(LAYER, 4, LAYER) == pytest.approx(4 * 3e-3 + 6 * send)
    assert 3e-3 < layer_pipeline(LAYER, 4, AT_ONCE) < 2 * 3e-3
    # With two layers on two GPUs, half of the first layer runs alone, then both layers overlap,
    # then half of the second layer runs alone.
    got = sequence_pipeline({64: LAYER}, 64, 2, AT_ONCE)
    send = BEGIN + WITHIN["ring"] + 2 * 2 * 64 * 1024 / (REACHED * NVLINK)
    sent = all_reduce(LAYER.gradients, 2) + all_reduce(256 * 1024 * 4, 2)
    assert got == pytest.approx(3 * (1.5e-3 + 2 * send) + sent)
    # Half of the rows takes half of the time, so smaller parts of the batch are faster.
    half = Layer(32, 256, 1024, 0.5e-3, 1e-3)
    assert sequence_pipeline({32: half, 64: LAYER}, 64, 2, AT_ONCE) < got


def row(what: str, mode: str, median: float) -> dict[str, Any]:
    batch, steps, hidden = map(int, what.split(","))
    facts = {"what": what, "mode": mode, "digits": "bfloat16"}
    shape = [batch, steps, hidden, hidden]
    key = f"{scale_page.KEYS}{what}/bfloat16/{mode}"
    return facts | {"key": key, "shape": shape, "times": {"treadle": {"median_us": median}}}


def block(folder: Path, slow: float) -> str:
    rows = [row(scale_page.FEW_STEPS, mode, 100.0) for mode in ("inference", "training")]
    for what, training in (("64,256,1024", slow), ("16,256,1024", slow)):
        rows += [row(what, "inference", 1000.0), row(what, "training", training)]
    rows.append({"key": f"{scale_page.KEYS}refused", "refused": "wrong", "digits": "bfloat16"})
    facts = {"gpu": "a GPU", "torch": "2", "treadle_commit": "abc", "date": "2026-11-23T"}
    path = folder / "a.json"
    path.write_text(json.dumps({"machine": facts, "rows": rows}))
    return "\n".join(scale_page.figures([([path], facts, rows)]))


def test_the_block_follows_its_rows(tmp_path: Path) -> None:
    made = block(tmp_path, slow=4000.0)
    assert "on one a GPU, torch 2, treadle abc, 2026-11-23" in made
    assert "| 64,256,1024 | 136 MB | 16.0 | 16.3 (98%, 94%) |" in made
    # Here 16 rows take as long as 64, so one layer per GPU is faster than 16 rows per GPU.
    assert "| 64,256,1024 | 4 | 16 | 16.2 | **5.6** | 7.4 |" in made
    assert "| 64,256,1024 | 136 MB | 32.0 |" in block(tmp_path, slow=8000.0)
    assert list(scale_page.figures([])) == [scale_page.NONE_YET]
    assert scale_page.PAGE in readme_numbers.PAGES
