"""Makes the block of docs/dev/scaling.md: the calculated time of a training step on many GPUs.

    python benchmarks/pages/scale_page.py    print the block; `make readme-numbers` writes it

The times of one layer on one GPU are measured (rows of the suite sweep_cells). The time of
communication between GPUs is calculated from the assumptions below. Units are seconds, bytes and
bytes per second.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.pages.tables import (  # noqa: E402
    Machine,
    commit,
    filled,
    line,
    links,
    machines,
    runs,
    table,
)

PAGE = ROOT / "docs" / "dev" / "scaling.md"
NONE_YET = "No times of LSTM layers have been committed yet."
KEYS = "cuda/sweep_cells/lstm/"
# A node, as in NVIDIA's data sheets of H200 and DGX H200. Each GPU has NVLink with 900 GB/s for
# both directions together, and a network card with 400 Gb/s.
NODE = 8
NVLINK = 900e9 / 2
NETWORK = 400e9 / 8
MEMORY = 141e9
# We assume that this fraction of the speeds above is reached.
REACHED = 0.8
# Latencies that NCCL 2.30 assumes (src/graph/tuning.cc, protocol Simple): of the start, and of each
# hop within a node and between nodes.
BEGIN = 8.4e-6
WITHIN = {"ring": 3.4e-6, "tree": 4.0e-6}
BETWEEN = 14e-6
# The network: layers with H inputs and H units, between an embedding of bytes and a linear layer
# that predicts bytes.
LAYERS, VOCABULARY, GATES = 4, 256, 4
GRADIENT = 4  # bytes per element: float32, as with autocast or FSDP2's reduce_dtype
HALF = 2
SHAPES = ("16,512,512", "64,512,512", "16,256,1024", "64,256,1024", "256,256,1024", "64,256,2048")
GPUS = (8, 64, 512)
FEW_STEPS = "32,4,512"  # a call of four steps, which takes about the minimum time of a call


@dataclass(frozen=True)
class Layer:
    """One layer on one GPU: B rows, T steps, H inputs and units."""

    batch: int
    steps: int
    hidden: int
    forward: float
    backward: float

    @property
    def gradients(self) -> float:
        """The bytes of the gradients of W_ih, W_hh and two biases."""
        return GRADIENT * GATES * self.hidden * (2 * self.hidden + 2)


def all_reduce(size: float, gpus: int) -> float:
    """Seconds to all-reduce ``size`` bytes by NCCL's ring or its trees, whichever is faster."""
    if gpus == 1:
        return 0.0
    nodes = math.ceil(gpus / NODE)
    # A ring enters and leaves a node once, through all of the node's network cards at once.
    speed = NVLINK if nodes == 1 else min(NVLINK, NODE * NETWORK)
    bandwidth = 2 * (gpus - 1) / gpus * size / (REACHED * speed)
    steps = {"ring": 2 * (nodes - 1), "tree": 2 * math.ceil(math.log2(nodes))}
    inside = {"ring": 2 * (gpus - 1) - steps["ring"], "tree": 2 * (min(gpus, NODE) - 1)}
    latency = min(inside[way] * WITHIN[way] + steps[way] * BETWEEN for way in WITHIN)
    return BEGIN + latency + bandwidth


def data_parallel(layer: Layer, layers: int, gpus: int, overlap: bool = True) -> float:
    """The time of a training step with data parallelism.

    The gradients of a layer are sent while the layers below it compute theirs. Without
    ``overlap``, all gradients are sent at the end.
    """
    # The bytes of the linear layer's gradient. The embedding's gradient has the same size.
    ends = VOCABULARY * layer.hidden * GRADIENT
    computed = layers * layer.forward
    sent = computed + all_reduce(ends, gpus)
    for _ in range(layers):
        computed += layer.backward
        sent = max(sent, computed) + all_reduce(layer.gradients, gpus)
    sent += all_reduce(ends, gpus)
    waits = 2 * all_reduce(ends, gpus) + layers * all_reduce(layer.gradients, gpus)
    return sent if overlap else computed + waits


def layer_pipeline(layer: Layer, gpus: int, call: Layer) -> float:
    """The time of a training step if each GPU has one layer and processes the time steps in chunks.

    The function tries several numbers of chunks and returns the smallest time. A chunk takes at
    least as long as ``call``, a short call.
    """
    found = []
    for chunks in (2**k for k in range(1 + int(math.log2(layer.steps)))):
        turns = chunks + gpus - 1
        forward = max(layer.forward / chunks, call.forward)
        backward = max(layer.backward / chunks, call.backward)
        output = HALF * layer.batch * layer.steps / chunks * layer.hidden
        send = BEGIN + WITHIN["ring"] + output / (REACHED * NVLINK)
        found.append(turns * (forward + backward) + 2 * (gpus - 1) * send)
    return min(found)


def sequence_pipeline(layers: dict[int, Layer], batch: int, gpus: int, call: Layer) -> float:
    """The time of a training step if each GPU has all layers and a part of the time steps.

    There are as many layers as GPUs. The rows are divided into groups; their size is the measured
    one for which the step is fastest. A layer's part on one GPU waits for the layer's part on the
    previous GPU, and for the layer below. The gradients of the first layer are sent last.
    """
    found = []
    for rows, layer in layers.items():
        if batch % rows == 0:
            turns = gpus * (batch // rows) + gpus - 1
            forward = max(layer.forward / gpus, call.forward)
            backward = max(layer.backward / gpus, call.backward)
            send = BEGIN + WITHIN["ring"] + 2 * HALF * rows * layer.hidden / (REACHED * NVLINK)
            step = turns * (forward + backward + 2 * send)
            ends = VOCABULARY * layer.hidden * GRADIENT
            found.append(step + all_reduce(layer.gradients, gpus) + all_reduce(ends, gpus))
    return min(found)


def layers_of(rows: Iterable[dict[str, object]]) -> dict[str, Layer]:
    """The bfloat16 layers by shape. The backward pass is the time of training minus that of
    inference."""
    times: dict[str, dict[str, float]] = {}
    shapes = {}
    for row in rows:
        if row.get("digits") == "bfloat16" and "times" in row:
            median = row["times"]["treadle"]["median_us"]  # type: ignore[index]
            times.setdefault(str(row["what"]), {})[str(row["mode"])] = median * 1e-6
            shapes[str(row["what"])] = row["shape"]
    found = {}
    for what, modes in times.items():
        if modes.keys() >= {"inference", "training"}:
            batch, steps, _, hidden = shapes[what]  # type: ignore[misc]
            forward, training = modes["inference"], modes["training"]
            found[what] = Layer(batch, steps, hidden, forward, training - forward)
    return found


def assumptions() -> Iterator[str]:
    yield (
        f"We assume nodes of {NODE} H200. Each GPU has NVLink with {NVLINK / 1e9:.0f} GB/s in each "
        f"direction, and a network card with {NETWORK / 1e9:.0f} GB/s (NVIDIA's data sheets of "
        f"H200 and DGX H200). We guess that {REACHED:.0%} of these speeds is reached. An "
        "all-reduce uses a ring or trees, whichever is faster. Its latencies are those in NCCL "
        f"2.30's tuning.cc (protocol Simple): {BEGIN * 1e6:.1f} µs for the start, "
        f"{WITHIN['ring'] * 1e6:.1f} µs (ring) or {WITHIN['tree'] * 1e6:.1f} µs (trees) for each "
        f"hop within a node, and {BETWEEN * 1e6:.0f} µs for each hop between nodes. Gradients take "
        f"{GRADIENT} bytes per element (float32)."
    )
    yield ""


def by_data(layers: dict[str, Layer]) -> Iterator[str]:
    yield (
        "The first table has milliseconds per training step. The network has "
        f"{LAYERS} LSTM layers between a byte embedding ({VOCABULARY} entries) and a linear layer "
        f"with {VOCABULARY} outputs. It runs in bfloat16, with B rows on each GPU. The brackets "
        "have the time on 1 GPU divided by the time on several GPUs (100% is perfect scaling). The "
        "first percentage applies if all-reduces overlap with the backward pass, the second if "
        "they do not:"
    )
    yield ""
    yield from table("B, T, H", "gradients", "1 GPU", *(f"{gpus} GPUs" for gpus in GPUS))
    for what in SHAPES:
        if what not in layers:
            continue
        layer = layers[what]
        alone = data_parallel(layer, LAYERS, 1)
        size = LAYERS * layer.gradients + 2 * VOCABULARY * layer.hidden * GRADIENT
        cells = []
        for gpus in GPUS:
            step, apart = (data_parallel(layer, LAYERS, gpus, way) for way in (True, False))
            cells.append(f"{step * 1e3:.1f} ({alone / step:.0%}, {alone / apart:.0%})")
        yield line(what, f"{size / 1e6:.0f} MB", f"{alone * 1e3:.1f}", *cells)
    yield ""


def pairs(layers: dict[str, Layer]) -> Iterator[tuple[dict[int, Layer], int, int]]:
    """Yields, for each T and H, the measured layers by B, one of these B, and a number of GPUs.

    A layer with B divided by this number was measured, too.
    """
    for hidden, steps in sorted({(layer.hidden, layer.steps) for layer in layers.values()}):
        same = (one for one in layers.values() if (one.hidden, one.steps) == (hidden, steps))
        by_batch = dict(sorted((layer.batch, layer) for layer in same))
        for batch in by_batch:
            for gpus in (2, 4, 8):
                if batch // gpus in by_batch and batch % gpus == 0:
                    yield by_batch, batch, gpus


def by_layers(layers: dict[str, Layer]) -> Iterator[str]:
    call = layers[FEW_STEPS]
    yield (
        "The next table compares three ways to divide a network among GPUs. This network has as "
        "many layers as there are GPUs, and B is the total number of rows on all GPUs. *Data*: "
        "each GPU has all layers and a part of the rows. *Layers*: each GPU has one layer and all "
        "rows, and sends the layer's outputs to the next GPU in chunks of steps. *Sequence*: each "
        "GPU has all layers and a part of the steps, and sends the last states of each group of "
        "rows to the next GPU. The table has milliseconds per training step, with the fastest in "
        "bold:"
    )
    yield ""
    yield from table("B, T, H", "GPUs", "rows per GPU", "data", "layers", "sequence")
    for by_batch, batch, gpus in pairs(layers):
        layer = by_batch[batch]
        times = (
            data_parallel(by_batch[batch // gpus], gpus, gpus),
            layer_pipeline(layer, gpus, call),
            sequence_pipeline(by_batch, batch, gpus, call),
        )
        shown = [f"{time * 1e3:.1f}" for time in times]
        cells = [f"**{s}**" if t == min(times) else s for s, t in zip(shown, times, strict=True)]
        what = f"{batch},{layer.steps},{layer.hidden}"
        yield line(what, str(gpus), str(batch // gpus), *cells)
    yield ""
    yield (
        "We assume that a chunk takes at least as long as a measured call of four steps, which is "
        f"mostly host overhead ({(call.forward + call.backward) * 1e3:.2f} ms for B,T,H of "
        f"{FEW_STEPS})."
    )
    yield ""


def memory(layers: dict[str, Layer]) -> Iterator[str]:
    """Sentences about the memory of the layers. A layer saves its input, output and gates."""
    widest = max(layer.hidden for layer in layers.values())
    kept = HALF * (2 + GATES) * widest
    fit = MEMORY / (LAYERS * kept)
    yield (
        f"For the backward pass, {LAYERS} layers with H = {widest} save {LAYERS * kept / 1e3:.0f} "
        f"kB per row and time step. So a batch with B · T = {fit / 1e6:.1f} million fills the "
        f"memory of a {MEMORY / 1e9:.0f} GB GPU."
    )


def figures(found: Iterable[Machine]) -> Iterator[str]:
    measured = [(files, layers_of(rows)) for files, rows in runs(found, KEYS)]
    measured = [(files, layers) for files, layers in measured if FEW_STEPS in layers]
    if not measured:
        yield NONE_YET
        return
    files, layers = measured[0]
    facts = files[-1][1]
    yield (
        f"The times of one layer were measured on one {facts['gpu']}, torch {facts['torch']}, "
        f"{commit(facts)}, {facts['date'][:10]}, "
        f"{links([path for path, _ in files], PAGE.parent)} (rows `{KEYS}…/bfloat16`). The time of "
        "the backward pass is that of training minus that of inference."
    )
    yield ""
    for make in (lambda _: assumptions(), by_data, by_layers, memory):
        yield from make(layers)


def rewritten(text: str, found: Iterable[Machine]) -> str:
    """The page with its generated block."""
    return filled(PAGE, text, {"scale": lambda: figures(found)})


if __name__ == "__main__":
    print("\n".join(figures(machines())))
