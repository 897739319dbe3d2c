"""The examples run, reach the promised results, and refuse bad input."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

import treadle

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    ),
]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The device that the examples find. For the CPU, torch pretends to have no GPU."""
    if request.param == "cpu":
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return request.param


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    threads = torch.get_num_threads()
    yield importlib.import_module
    torch.set_num_threads(threads)


def run(
    *arguments: object, device: str = "cpu", script: str = "digits.py"
) -> subprocess.CompletedProcess[str]:
    """Runs a script of examples/ as a user would, from another folder."""
    package = str(Path(treadle.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": package, "COLUMNS": "100"}
    if device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    return subprocess.run(
        [sys.executable, str(EXAMPLES / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=EXAMPLES.root,
        timeout=300,
    )


def test_device_check(example, device: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = example("device_check").main()
    assert out.device.type == device
    assert out.tolist() == [5.0, 6.0, 7.0, 8.0]
    assert ("Running on the CPU." in capsys.readouterr().out) == (device == "cpu")


def test_device_check_falls_back_when_kernels_do_not_run(
    example, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("scale: the build must have CUDA")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "ones", lambda *_, **__: None)
    monkeypatch.setattr(treadle, "scale", refuse)
    assert example("device_check").pick_device() == torch.device("cpu")
    assert "is not used: scale: the build must have CUDA" in capsys.readouterr().out


def test_numpy_in_place(example, device: str) -> None:
    array = example("numpy_in_place").main()
    assert array.tolist() == [0, 2, 4, 6, 8, 10]


def test_vector_add_launch(example, device: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = example("vector_add_launch")
    launches = module.main()
    text = capsys.readouterr().out
    if device == "cpu":
        assert launches == [] and "there is no launch" in text
        return
    (launch,) = launches
    room = np.prod(launch["grid"]) * np.prod(launch["block"]) * launch["elements_per_thread"]
    assert room >= module.ELEMENTS
    assert f"blocks of {launch['block'][0]} threads" in text


def test_vector_add_launch_explains(
    example, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launch = {"kernel": "add", "grid": (977, 1, 1), "block": (256, 1, 1), "vector_width": 4}
    launch |= {"elements_per_thread": 4, "registers": 32, "shared_bytes": 0}
    launch |= {"blocks_per_sm": 8, "occupancy": 1.0}
    monkeypatch.setattr(treadle, "launch_info", lambda *_, **__: [launch])
    example("vector_add_launch").main()
    text = capsys.readouterr().out
    assert "1,000,003 elements with 977 blocks of 256 threads" in text
    assert "977 x 256 x 4 leaves room for 445 more" in text
    assert "8 blocks\n  fit on a multiprocessor at once: 100%" in text


def test_sine_cnn(example, device: str) -> None:
    assert example("sine_cnn").main() > 0.85


@pytest.fixture(scope="module", params=DEVICES)
def demo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """The output and pictures of digits.py. In .ci/run the script has already run on the CPU."""
    if (made := os.environ.get("TREADLE_DEMO")) and request.param == "cpu":
        said = (Path(made) / "said.txt").read_text()
        return subprocess.CompletedProcess([], 0, said, ""), Path(made), request.param
    out = tmp_path_factory.mktemp("demo") / "new" / "folder"
    return run("--out", out, device=request.param), out, request.param


def test_demo_reaches_the_target(demo) -> None:
    done, _, device = demo
    assert done.returncode == 0, done.stderr
    assert f"to be tested on; on {device}." in done.stdout
    row = r"(treadle\S+|torch\S+|plain).*? (\d+) of 360 +\S +([\d.]+)% +\S +([\d.]+) ms"
    rows = re.findall(row, done.stdout)
    lltm = ["treadle.nn.LLTM", "treadle.nn.LLTMCell", "plain"]
    pairs = [f"{package}.nn.{cell}" for cell in ("LSTM", "GRU") for package in ("treadle", "torch")]
    assert [name for name, *_ in rows] == [*pairs, *lltm]
    read = [int(right) for _, right, _, _ in rows]
    for right, (_, _, share, ms) in zip(read, rows, strict=True):
        assert right >= 0.95 * 360 and float(share) == round(100 * right / 360, 1)
        assert float(ms) > 0
    # The runs that are compared here start with the same parameters and learn the same, up to
    # rounding.
    for alike in (read[:2], read[2:4], read[4:]):
        assert max(alike) - min(alike) <= 2
    same = re.search(r"plain cell reads (\d+) of 360 the same, the layer (\d+)", done.stdout)
    assert same is not None and min(map(int, same.groups())) >= 359


def test_demo_draws(demo) -> None:
    _, out, _ = demo
    for name in ("learning_curve.png", "test_digits.png"):
        with Image.open(out / name) as picture:
            assert picture.format == "PNG" and min(picture.size) > 400
            pixels = np.asarray(picture.convert("L"))
            # The picture is neither blank nor black.
            assert 0.02 < (pixels < 128).mean() < 0.5


def test_demo_reads_pictures_back(demo, example, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = demo
    read = [int(example("digits").predict(out / f"digit_{n}.png", out).argmax()) for n in range(10)]
    assert sum(digit == n for n, digit in enumerate(read)) >= 9
    assert re.search(rf"digit_9.png: {read[9]} \(\d+%; next \d, \d+%\)", capsys.readouterr().out)


def variants(picture: Image.Image) -> dict[str, Image.Image]:
    """The same digit in different formats, colours and sizes."""
    grey = np.asarray(picture.convert("L"))
    ink = np.zeros((*grey.shape, 4), np.uint8)
    ink[..., 3] = 255 - grey
    chalk = ink.copy()
    chalk[..., :3] = 255
    return {
        "light on dark": ImageOps.invert(picture.convert("L")),
        "colour": ImageOps.colorize(picture.convert("L"), "navy", "ivory"),
        "palette": picture.convert("P"),
        "bits": picture.convert("1"),
        "16 bits": Image.fromarray(grey.astype(np.uint16) * 257),
        "faint": Image.fromarray((150 + grey / 5).astype(np.uint8)),
        "black on transparent": Image.fromarray(ink),
        "white on transparent": Image.fromarray(chalk),
        "small": picture.resize((8, 8)),
        "large": picture.resize((1500, 2000)),
        "off centre": ImageOps.expand(picture.convert("L"), (300, 10, 20, 50), fill=255),
    }


def test_demo_reads_any_kind_of_picture(demo, example, tmp_path: Path) -> None:
    _, out, _ = demo
    predict = example("digits").predict
    wrong = []
    for digit in (0, 2, 3, 6):
        with Image.open(out / f"digit_{digit}.png") as picture:
            expected = int(predict(out / f"digit_{digit}.png", out).argmax())
            for name, variant in variants(picture).items():
                variant.save(tmp_path / "picture.png")
                if int(predict(tmp_path / "picture.png", out).argmax()) != expected:
                    wrong.append((digit, name))
    assert not wrong


def test_demo_thickens_a_thin_pen(example) -> None:
    line = np.zeros((300, 200), np.uint8)
    line[50:250, 100] = 255
    image = example("digits_pictures").prepare(Image.fromarray(line))
    assert image.shape == (8, 8) and image.dtype == np.float32
    assert image.max() == 1 and image.mean() > 0.15
    assert image[:, 0].max() == image[:, -1].max() == 0


def test_predict_from_the_command_line(demo) -> None:
    _, out, _ = demo
    done = run("--out", out, "--predict", out / "digit_0.png")
    assert done.returncode == 0, done.stderr
    assert re.search(r"digit_0.png: 0 \(\d+%; next", done.stdout)


def test_predict_says_what_is_wrong(demo, example, tmp_path: Path) -> None:
    _, out, _ = demo
    predict = example("digits").predict
    Image.new("RGB", (40, 40), "teal").save(tmp_path / "blank.png")
    Image.new("L", (1, 1)).save(tmp_path / "pixel.png")
    (tmp_path / "text.png").write_text("7")
    (tmp_path / "half.png").write_bytes((out / "test_digits.png").read_bytes()[:2000])
    for name, message in {
        "blank.png": "cannot read a digit from .*: the picture is blank",
        "pixel.png": "cannot read a digit from .*: the picture is blank",
        "text.png": "cannot read a digit from .*: cannot identify image file",
        "half.png": "cannot read a digit from .*: .*truncated",
        "none.png": "there is no file .*none.png",
        "": "cannot read a digit from .*: .*directory",
    }.items():
        with pytest.raises(SystemExit, match=f"^digits.py: {message}"):
            predict(tmp_path / name, out)
    with pytest.raises(SystemExit, match="there is no model in .* yet; train it: python"):
        predict(out / "digit_0.png", tmp_path)


def test_demo_fails_below_the_target(tmp_path: Path) -> None:
    done = run("--epochs", 1, "--out", tmp_path)
    assert done.returncode == 1
    assert re.search(r"accuracy [\d.]+% is below 95%", done.stderr)


def test_demo_fails_when_the_cells_differ(example, capsys: pytest.CaptureFixture[str]) -> None:
    report = example("digits").report
    assert report(0.99, {"plain cell": 358, "layer": 360}) and capsys.readouterr().err == ""
    assert not report(0.99, {"plain cell": 357, "layer": 360})
    assert capsys.readouterr().err == "digits.py: treadle's cell and the plain cell do not agree\n"
    assert not report(0.99, {"plain cell": 360, "layer": 0})
    assert capsys.readouterr().err == "digits.py: treadle's cell and the layer do not agree\n"


def test_demo_is_the_same_twice_and_another_for_another_seed(example, tmp_path: Path) -> None:
    saved = []
    for seed in (5, 5, 6):
        example("digits").train(tmp_path, epochs=1, seed=seed)
        saved.append(torch.load(tmp_path / "digits.pt", weights_only=True))
    first, again, other = saved
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)
