"""The examples of Siren learn and differentiate a photograph, and solve the Helmholtz equation."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.package.test_examples import DEVICES, example, run  # noqa: F401
from tests.sine_linear.jets import by_autograd
from treadle.nn import Siren

SMALL = ("--pixels", 64, "--hidden", 64, "--steps", 600)
TARGETS = {"cpu": 30, "cuda": 40}


@pytest.fixture(scope="module", params=DEVICES)
def fit(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    out = tmp_path_factory.mktemp("photograph") / "new" / "folder"
    done = run("--out", out, *SMALL, device=request.param, script="photograph.py")
    return done, out, request.param


def test_photograph_is_learnt_by_both_alike(fit) -> None:
    done, _, device = fit
    assert f"64 x 75 pixels, 600 steps; on {device}.\n" in done.stdout, done.stderr
    row = r"(treadle\S+|plain).*? ([\d.]+) dB +\S +([\d.]+) s +\S +([\d.]+) ms"
    rows = {name: list(map(float, rest)) for name, *rest in re.findall(row, done.stdout)}
    assert list(rows) == ["treadle.nn.Siren", "plain"]
    for psnr, seconds, step in rows.values():
        assert psnr > 30 and seconds > 0 and step > 0
    psnr = rows["treadle.nn.Siren"][0]
    assert abs(psnr - rows["plain"][0]) < 1.5
    apart = re.search(r"differ by (\S+) at most", done.stdout)
    assert apart is not None and float(apart[1]) < 1e-2
    assert done.returncode == (0 if psnr >= TARGETS[device] else 1), done.stderr


def test_photograph_sheet(fit) -> None:
    _, out, _ = fit
    with Image.open(out / "photograph.png") as picture:
        assert picture.format == "PNG" and min(picture.size) > 600
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    third = pixels.shape[1] // 3
    # Colour photographs on the left, black drawings in the middle.
    colour = np.ptp(pixels, axis=2)
    middle = slice(int(1.1 * third), int(1.9 * third))
    top = pixels.shape[0] * 3 // 4
    assert (colour[:top, :third] > 60).mean() > 0.1
    assert colour[:top, middle].max() < 10
    assert 0.02 < (pixels[:top, middle].mean(axis=2) < 128).mean() < 0.5


def test_photograph_fails_below_the_target(tmp_path: Path) -> None:
    few = ("--pixels", 16, "--hidden", 8, "--steps", 1)
    done = run("--out", tmp_path, *few, script="photograph.py")
    assert done.returncode == 1
    assert re.search(r"^photograph.py: PSNR [\d.]+ dB is below 30 dB$", done.stderr, re.M)


def test_photograph_reports_a_disagreement(
    example,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = example("photograph").report
    assert report(30.1, 30, 9e-3) and capsys.readouterr().err == ""
    assert not report(30.1, 30, 2e-2)
    assert capsys.readouterr().err == "photograph.py: treadle and plain PyTorch do not agree\n"
    assert not report(29.9, 30, 0) and "below" in capsys.readouterr().err


@pytest.mark.parametrize("option, value", [("pixels", "513"), ("pixels", "7"), ("steps", "0")])
def test_photograph_refuses(
    example,  # noqa: F811
    option: str,
    value: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        example("photograph").main([f"--{option}", value])
    assert f"--{option} must be from " in capsys.readouterr().err


def test_photograph_is_matplotlibs(example) -> None:  # noqa: F811
    image = example("photograph_pictures").load_photograph(128)
    assert image.shape == (150, 128, 3) and image.dtype == np.float32
    assert -1 <= image.min() < -0.9 and 0.9 < image.max() <= 1


def test_differences_are_those_of_known_pictures(example) -> None:  # noqa: F811
    y, x = np.mgrid[0:20, 0:30].astype(np.float32)
    maps = example("photograph_pictures").Maps.of_differences(x**2 / 2 - 3 * y)
    inner = np.s_[1:-1, 1:-1]
    np.testing.assert_allclose(maps.gradient[inner], np.hypot(x, 3)[inner], rtol=1e-5)
    np.testing.assert_allclose(maps.laplacian[inner], 1, rtol=1e-4)


@pytest.mark.parametrize("shape", [(90, 60), (50, 100)])
def test_derivatives_of_a_smooth_net_are_its_differences(example, shape) -> None:  # noqa: F811
    """The net is so smooth that pixel differences approximate its derivatives, including their
    size."""
    module = example("photograph")
    torch.manual_seed(0)
    net = Siren(2, 16, 1, 3, True, first_omega_0=3.0, hidden_omega_0=3.0)
    device = torch.device("cpu")
    maps = module.derivatives(net, *shape, device)
    image = net(module.places(*shape, device)).detach().reshape(*shape, 3)
    own = module.own_derivatives(image)
    for ours, differences in ((maps.gradient, own.gradient), (maps.laplacian, own.laplacian)):
        apart = np.abs(ours - differences)[1:-1, 1:-1].max()
        assert apart < 0.02 * np.abs(ours).max()
    assert min(maps.likeness(own)) > 0.99


def test_photograph_is_the_same_twice_and_another_for_another_seed(example) -> None:  # noqa: F811
    module = example("photograph")
    image = torch.from_numpy(example("photograph_pictures").load_photograph(16))
    learnt = []
    for seed in (5, 5, 6):
        torch.manual_seed(0)
        one = module.Fit(Siren(2, 8, 1, 3), module.Settings(batch=9, seed=seed), image)
        one.learn(3)
        learnt.append(one.net.state_dict()["net.1.weight"])
    first, again, other = learnt
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize("device", DEVICES)
def test_helmholtz_is_solved(device: str) -> None:
    done = run(device=device, script="helmholtz.py")
    assert done.returncode == 0, done.stderr
    found = re.search(
        rf"^Δu \+ 1²u = f on {device}: 1000 .* is off by ([\d.]+)% ", done.stdout, re.M
    )
    assert found is not None and 0 < float(found[1]) <= 1
    ratio = re.search(r"ms by jets and \S+ ms by autograd: ([\d.]+) x as fast", done.stdout)
    assert ratio is not None and float(ratio[1]) > 1


def test_helmholtz_fails_above_the_target() -> None:
    done = run("--steps", 3, script="helmholtz.py")
    assert done.returncode == 1
    assert re.search(r"helmholtz.py: the error [\d.]+% is above 1%$", done.stderr, re.M)


def test_helmholtz_residual_is_zero_for_the_answer_alone(
    example,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = example("helmholtz")
    x = torch.rand(50, 2, dtype=torch.float64) * 2 - 1

    def answer(point: torch.Tensor) -> torch.Tensor:
        return module.answer(point[None])

    for factor in (1.0, 1.1):
        monkeypatch.setattr(module, "solution", lambda _, x, f=factor: f * by_autograd(answer, x))
        left = module.residual(None, x).abs().max()
        assert (left < 1e-12) == (factor == 1), left
    corners = torch.tensor([[-1.0, 0.3], [0.3, 1.0], [1.0, -1.0]])
    assert module.answer(corners).abs().max() < 1e-5
    monkeypatch.undo()
    assert module.solution(Siren(2, 8, 1, 1), corners).value.abs().max() == 0
