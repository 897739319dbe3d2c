"""The agent of examples/agent learns to look, remember and walk. In its loop, the host reads no
values of tensors."""

from __future__ import annotations

import importlib
import json
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.package.test_examples import DEVICES, EXAMPLES

FIGURES = EXAMPLES.parent / "docs" / "figures"
RECORDS = sorted(FIGURES.glob("agent_*.json"))
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
FEW = 4  # kinds of digits: so few that a small agent learns in seconds
Load = Callable[[str], types.ModuleType]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Imports a module from this example."""
    for folder in (EXAMPLES, EXAMPLES / "agent"):
        monkeypatch.syspath_prepend(str(folder))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield importlib.import_module
    torch.set_num_threads(threads)


def few_digits(world: types.ModuleType, sheet: Any) -> Any:
    """Returns the sheet with only the digits below FEW."""
    pictures, kinds = sheet.pictures[world.WALL + 1 :], sheet.kinds[world.WALL + 1 :]
    return world.make_sheet(pictures[kinds < FEW], kinds[kinds < FEW], kinds.device)


def test_it_learns(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    world, find = load("agent_world"), load("find_digit")
    monkeypatch.setattr(find, "RULES", replace(find.RULES, entropy=0.02))
    sheets = [few_digits(world, sheet) for sheet in world.load_sheets(torch.device("cpu"))]
    sizes = {"rows": 128, "hidden": 96, "reading": 150, "updates": 50, "tested": 120}
    _, record = find.learn(find.Settings(**sizes, learning_rate=8e-3), sheets)
    assert record["eye"] > 0.95
    found = {who: entry["success"] for who, entry in record["success"].items()}
    # Guessing succeeds in one of four episodes. To do better, the agent must see and remember.
    assert found["agent"] > 0.4 and found["agent"] > found["random"] + 0.15
    assert max(found["random"], found["cue forgotten"], found["eyes shut"]) < 0.33
    lengths = [entry["steps"] for entry in record["success"].values()]
    assert max(lengths) < world.LIMIT
    assert record["inner_resets"] > 10_000
    assert sum(record["curve"][:5]) / 5 < 0.33


def started(load: Load, device: str, rows: int = 16, **options: Any) -> Any:
    """Makes a loop with untrained nets, and with noise in place of digits."""
    world, nets, loop = load("agent_world"), load("agent_nets"), load("agent_loop")
    torch.manual_seed(0)
    labels = torch.arange(10).repeat(3)
    sheet = world.make_sheet(torch.rand(30, 8, 8), labels, torch.device("cpu"))
    eye, mind = nets.Eye().to(device), nets.Mind(32).to(device)
    return loop.Loop(world.World(sheet.to(torch.device(device)), rows), eye, mind, **options)


@pytest.mark.parametrize("device", DEVICES)
def test_rooms_begin_in_the_middle_of_batches(load: Load, device: str) -> None:
    """Episodes end at different steps in different rows, and the layer resets at each end."""
    loop = started(load, device)
    told: list[torch.Tensor] = []
    real = loop.mind.layer.forward

    def watched(x: torch.Tensor, h: torch.Tensor, *, reset: torch.Tensor) -> Any:
        told.append(reset[0].clone())
        return real(x, h, reset=reset)

    loop.mind.layer.forward = watched
    played, _ = loop.play(64)
    begins, ends = played["begins"], played["ends"]
    assert begins[0].all() and torch.equal(begins[1:], ends[:-1])
    assert torch.equal(torch.stack(told[:-1]), begins) and torch.equal(told[-1], ends[-1])
    inner = begins[1:]
    assert inner.any(0).all() and (inner.any(1) & ~inner.all(1)).any()
    # One call over all steps gives the same scores, so its resets clear the memory as well.
    scores, value, h = loop.mind(played["x"], torch.zeros_like(loop.h), begins)
    near = 1e-4 if device == "cpu" else 1e-2  # TF32
    chance = scores.log_softmax(-1).gather(-1, played["action"][..., None])[..., 0]
    pairs = (value, played["value"]), (h, loop.h), (chance, played["chance"])
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, atol=near, rtol=near)


class NothingRead(TorchDispatchMode):
    """Fails if the host reads a tensor's values, or a size that depends on them."""

    READS = {"_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select"}
    READS |= {"_unique2", "unique_dim", "unique_consecutive", "multinomial", "allclose"}

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.partition("::")[2]
        assert name not in self.READS, f"the host reads a tensor: {name}"
        if name in ("index", "index_put", "index_put_"):
            kinds = {index.dtype for index in args[1] if index is not None}
            assert torch.bool not in kinds, "the host counts what a mask chooses"
        self.calls += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("options", [{}, {"make_step": True}, {"who": "cue forgotten"}])
def test_the_host_reads_nothing(load: Load, options: dict[str, Any]) -> None:
    loop = started(load, "cpu", **options)
    with NothingRead() as mode:
        loop.play(30)
        for read in (
            lambda: loop.h.sum().item(),
            lambda: loop.h[loop.h > 0],
            lambda: bool(loop.world.begins.any()),
            lambda: torch.equal(loop.h, loop.h),
        ):
            with pytest.raises(AssertionError, match="^the host"):
                read()
    # Each op launches at most one kernel, and a GPU's queue has space for about 1,000.
    assert mode.calls / 30 * load("agent_speed").AHEAD < 900


def test_the_loop_needs_no_values(load: Load) -> None:
    """The loop runs on the meta device, which has no values. A tensor elsewhere would raise."""
    loop = started(load, "meta")
    played, value = loop.play(5)
    assert {tensor.device.type for tensor in (*played.values(), value, loop.h)} == {"meta"}
    assert played["x"].shape == (5, 16, loop.mind.layer.input_size)


@GPU
@pytest.mark.parametrize("way", ["op by op", "make_step", "graph"])
def test_the_host_waits_for_nothing_on_cuda(load: Load, way: str) -> None:
    loop = started(load, "cuda", make_step=way == "make_step")
    call = load("agent_loop").player(loop, 8) if way == "graph" else lambda: loop.play(8)
    call()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError, match="synchroniz"):
            loop.h.sum().item()
        for _ in range(5):
            played, _ = call()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert played["ends"].any() and played["x"].isfinite().all()


@GPU
def test_a_graph_plays_what_the_loop_plays_on_cuda(load: Load) -> None:
    """The graph and the loop agree for the same state and seed. The next replay draws new random
    numbers."""
    graphed = started(load, "cuda")
    play = load("agent_loop").player(graphed, 8)
    loop = started(load, "cuda")
    world, other = loop.world, graphed.world
    pairs = [(getattr(world, n), getattr(other, n)) for n in ("at", "tiles", "wanted", "clock")]
    for ours, theirs in (
        *pairs,
        (world.begins, other.begins),
        (loop.h, graphed.h),
        (loop.last, graphed.last),
    ):
        theirs.copy_(ours)
    torch.manual_seed(3)
    expected, value = loop.play(8)
    torch.manual_seed(3)
    found, after = play()
    for name, ours in found.items():
        torch.testing.assert_close(ours, expected[name], msg=name)
    torch.testing.assert_close(after, value)
    before = found["action"].clone()
    play()
    assert not torch.equal(found["action"], before)


@GPU
def test_speeds_on_cuda(load: Load) -> None:
    loop, speed = started(load, "cuda"), load("agent_speed")
    rows = speed.measure(loop.eye, loop.mind, loop.world.sheet, [32], 0.05)
    assert len(rows) == 6
    for row in rows[2:]:
        assert 0 <= row["host_waits"] < 1 and 0 <= row["device_waits"] < 1
        assert row["host_us"] > 0 and row["device_us"] > 0


def walk(world: Any, to: torch.Tensor, side: int) -> torch.Tensor:
    """Returns the move towards tile ``to``: first up or down, then left or right."""
    down, along = to // side - world.at // side, to % side - world.at % side
    vertical = torch.where(down < 0, 0, 2)
    return torch.where(down != 0, vertical, torch.where(along > 0, 1, 3))


@pytest.mark.parametrize("right", [True, False])
def test_who_knows_the_corner_finds_it(load: Load, right: bool) -> None:
    """An episode ends when the agent reaches a corner, which is four steps away. Only the correct
    corner gives a reward of 1."""
    module, loop = load("agent_world"), started(load, "cpu")
    world, lengths = loop.world, set()
    for _ in range(40):
        kinds = world.sheet.kinds[world.tiles[:, world.corners]]
        assert all(len(set(row)) == 4 for row in kinds.tolist())
        corner = (kinds == world.wanted[:, None]).int().argmax(1)
        to = world.corners[corner if right else (corner + 1) % 4]
        before = world.clock.clone()
        reward, ends = world.step(walk(world, to, module.SIDE))
        lengths |= set((before[ends] + 1).tolist())
        assert (reward == torch.where(ends, 1.0 if right else module.WRONG, 0.0)).all()
        assert (ends == (world.clock == 0)).all()
    assert lengths == {4}


def test_rooms(load: Load) -> None:
    """The cue is shown once, walls stop the agent, and an episode has a maximum number of steps."""
    module, loop = load("agent_world"), started(load, "cpu")
    world, kinds = loop.world, loop.world.sheet.kinds
    for step in range(1, module.LIMIT + 1):
        seen = kinds[world.in_view()]
        assert (seen[:, 4] == (world.wanted if step == 1 else module.FLOOR_KIND)).all()
        corner_seen = (seen.flatten() < module.DIGITS).sum()
        assert corner_seen == (world.rows if step == 1 else 0)
        reward, ends = world.step(torch.full((world.rows,), 0))  # up, to the wall
        row = max(module.SIDE // 2 - step, 1) if step < module.LIMIT else module.SIDE // 2
        assert (world.at == row * module.SIDE + module.SIDE // 2).all()
        assert ends.all() if step == module.LIMIT else not ends.any()
        assert (reward == (module.WRONG if step == module.LIMIT else 0)).all()


def test_frames_show_the_tiles_around(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("agent_world")
    monkeypatch.setattr(module, "NOISE", 0.0)
    world = started(load, "cpu").world
    for _ in range(5):
        world.step(torch.randint(4, (world.rows,)))
    frames = world.frame()
    assert frames.shape == (world.rows, 1, 24, 24)
    for row in range(world.rows):
        top, left = divmod(int(world.at[row]), module.SIDE)
        for y in range(3):
            for x in range(3):
                tile = world.tiles[row, (top + y - 1) * module.SIDE + left + x - 1]
                shown = frames[row, 0, 8 * y : 8 * y + 8, 8 * x : 8 * x + 8]
                assert torch.equal(shown, world.sheet.pictures[tile])


def test_sheets_share_no_digit(load: Load) -> None:
    train, test = load("agent_world").load_sheets(torch.device("cpu"))
    for sheet in (train, test):
        for digit in range(10):
            first, count = int(sheet.first[digit]), int(sheet.count[digit])
            assert (sheet.kinds[first : first + count] == digit).all() and count > 20
        assert int(sheet.count.sum()) + 2 == len(sheet.kinds) == len(sheet.pictures)
    seen = {picture.numpy().tobytes() for picture in train.pictures[2:]}
    assert not seen & {picture.numpy().tobytes() for picture in test.pictures[2:]}
    assert len(test.kinds) == 2 + load("agent_world").TEST_DIGITS


def test_command(
    load: Load,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    find = load("find_digit")
    init = partialmethod(find.Settings.__init__, reading=5, tested=30, hidden=8)
    monkeypatch.setattr(find.Settings, "__init__", init)
    monkeypatch.setattr(find, "SECONDS", 0.01)
    monkeypatch.setitem(find.SIZES, "cpu", [8])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    out = tmp_path / "new"
    assert find.main(["--updates", "2", "--rows", "16", "--out", str(out)]) == 1
    said = capsys.readouterr()
    assert "of unseen digits after" in said.out and "random moves" in said.out
    assert "of the rooms, below 85%" in said.err
    for name in ("agent_cpu.png", "agent_strip.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    written = json.loads((out / "agent_cpu.json").read_text())
    kept = json.loads((FIGURES / "agent_cpu.json").read_text())
    assert written.keys() == kept.keys() and written["success"].keys() == kept["success"].keys()
    assert written["settings"].keys() == kept["settings"].keys() and len(written["curve"]) == 2


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_committed_record(load: Load, path: Path) -> None:
    record, find = json.loads(path.read_text()), load("find_digit")
    assert record["settings"] == vars(find.Settings())
    found = {who: entry["success"] for who, entry in record["success"].items()}
    assert found["agent"] >= find.TARGET and record["seconds"]["mind"] < 180
    assert max(found["random"], found["cue forgotten"], found["eyes shut"]) < 0.33
    assert path.with_suffix(".png").stat().st_size < 150_000
    assert (FIGURES / "agent_strip.png").stat().st_size < 200_000
