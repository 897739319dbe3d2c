"""examples/characters.py trains its model, writes text, resumes, and refuses bad input."""

from __future__ import annotations

import importlib
import math
import pydoc_data.topics
import re
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.package.test_examples import DEVICES, EXAMPLES, run

SMALL = ("--hidden", "48", "--every", "50", "--write", "120")


@pytest.fixture
def characters(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    threads = torch.get_num_threads()
    yield importlib.import_module("characters")
    torch.set_num_threads(threads)


def curve(text: str) -> dict[int, tuple[float, float]]:
    """Maps each step of a run to its bits per character in training and on held-out text."""
    lines = re.findall(r"^ +([\d,]+) +\d+\.\d\d +(\d+\.\d+) +(\d+\.\d+)$", text, re.M)
    return {int(step.replace(",", "")): (float(a), float(b)) for step, a, b in lines}


@pytest.fixture(scope="module", params=DEVICES)
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """Makes one run of 300 steps, and one of 150 steps that is resumed for 150 more."""
    out, script = tmp_path_factory.mktemp("characters") / "new", "characters.py"
    once, parts = out / "once.pt", out / "parts.pt"
    options = {"device": request.param, "script": script}
    # Two layers on a GPU, so that resuming must restore the state of the dropout between them.
    sizes = (*SMALL, "--layers", 2 if request.param == "cuda" else 1)
    texts = [
        run("--output", once, "--steps", 300, *sizes, **options),
        run("--output", parts, "--steps", 150, *sizes, **options),
        run("--resume", parts, "--steps", 150, "--every", 50, "--write", 120, **options),
    ]
    for done in texts:
        assert done.returncode == 0, done.stderr
    return [done.stdout for done in texts], once, parts, request.param


def test_bits_fall_and_text_is_written(runs) -> None:
    (text, _, _), once, _, device = runs
    assert f"different ones; on {device}.\n" in text
    found = curve(text)
    assert list(found) == [50, 100, 150, 200, 250, 300]
    frequencies = r"([\d.]+) if the frequencies are known\.\n\n"
    baseline = re.search(rf"takes ([\d.]+) bits .*, or {frequencies}", text)
    assert baseline is not None
    even, unigram = map(float, baseline.groups())
    learning, held_out = found[300]
    assert learning < found[150][0] < found[50][0]
    # With the larger settings for a GPU, these steps are only the beginning of learning.
    assert held_out < found[50][1] and held_out < unigram - (0.5 if device == "cpu" else 0)
    assert 4 < unigram < even < 8
    written, after = text[baseline.end() :].split("\n\nGo on with: python ")
    assert len(written) > 80 and "\N{REPLACEMENT CHARACTER}" not in written
    assert after.strip().endswith(f"characters.py --resume {once}")


def test_resumed_run_goes_on_exactly(runs) -> None:
    """On a GPU results are only close, because torch sums an embedding's gradient in no fixed
    order."""
    (whole, first, second), once, parts, device = runs
    one, other = (torch.load(path, weights_only=True) for path in (once, parts))
    assert one["steps"] == other["steps"] == 300
    assert torch.equal(one["random"], other["random"])
    assert one["c"].dtype == torch.float32
    assert not any(weight.isnan().any() for weight in one["model"].values())
    if device != "cpu":
        for step, bits in (curve(first) | curve(second)).items():
            assert bits == pytest.approx(curve(whole)[step], abs=1e-2), step
        for name in ("h", "c"):
            torch.testing.assert_close(one[name], other[name], rtol=0.1, atol=0.1)
        for name, weight in one["model"].items():
            far = torch.linalg.vector_norm(weight - other["model"][name])
            assert far < 0.05 * torch.linalg.vector_norm(weight), name
        return
    assert curve(first) | curve(second) == curve(whole)
    assert (
        second.split("bits a character,")[1].split("Go on")[0]
        == (whole.split("bits a character,")[1].split("Go on")[0])
    )
    for name in ("h", "c"):
        assert torch.equal(one[name], other[name]), name
    for name, weight in one["model"].items():
        assert torch.equal(weight, other["model"][name]), name
    for number, moments in one["optimizer"]["state"].items():
        for name, value in moments.items():
            assert torch.equal(value, other["optimizer"]["state"][number][name]), name


@pytest.mark.parametrize("cell", ["lltm", "lstm", "gru"])
def test_passes_cut_the_text_anew_and_resume_across_them(
    cell: str, characters, tmp_path: Path
) -> None:
    """The text is so short that the run passes over it several times."""
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"{chr(97 + i % 26) * 30} line {'xyz' * i}" for i in range(200)))
    common = ("--device", "cpu", "--every", "9", "--write", "1")
    new = (*common, "--text", str(text), "--cell", cell, "--hidden", "8", "--output")
    whole = characters.main([*new, str(tmp_path / "whole.pt"), "--steps", "150"])
    assert 150 > 2 * whole.pieces
    characters.main([*new, str(tmp_path / "parts.pt"), "--steps", "77"])
    resume = [*common, "--resume", str(tmp_path / "parts.pt"), "--steps", "73"]
    parts = characters.main(resume)
    assert whole.offset == parts.offset and torch.equal(whole.hx[-1], parts.hx[-1])
    assert type(whole.model.layer).__name__ == cell.upper()
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, parts.model.state_dict()[name])


def test_minutes_bound_a_run(characters, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    options = ("--device", "cpu", "--minutes", "0.001", "--write", "5")
    characters.main([*options, "--hidden", "8", "--output", str(tmp_path / "a.pt")])
    assert len(curve(capsys.readouterr().out)) == 1


def test_says_what_is_wrong_with_what_it_is_to_resume(characters, tmp_path: Path) -> None:
    torch.save({"format": "another"}, tmp_path / "other.pt")
    torch.save({"format": characters.FORMAT}, tmp_path / "empty.pt")
    torch.save(torch.nn.Linear(2, 2), tmp_path / "module.pt")
    (tmp_path / "text.pt").write_text("no model")
    (tmp_path / "nothing.pt").write_text("")
    for name, message in {
        "none.pt": "there is no file .*none.pt to resume; --output writes one",
        "other.pt": ".*other.pt is not what --output saved: another program wrote it",
        "empty.pt": ".*empty.pt is not what --output saved: .*settings",
        "module.pt": ".*module.pt is not what --output saved: ",
        "text.pt": ".*text.pt is not what --output saved: ",
        "nothing.pt": ".*nothing.pt is not what --output saved: ",
        "": ".* is not what --output saved: .*directory",
    }.items():
        with pytest.raises(SystemExit, match=f"^characters.py: {message}"):
            characters.main(["--device", "cpu", "--resume", str(tmp_path / name)])


def test_says_what_is_wrong_with_its_options(characters, capsys: pytest.CaptureFixture) -> None:
    for arguments, message in {
        ("--resume", "a.pt", "--seed", "1"): "--resume goes on with the text, the cell, the",
        ("--hidden", "0"): "--hidden must be greater than 0, got 0",
        ("--minutes", "-1"): "--minutes must be greater than 0, got -1.0",
    }.items():
        with pytest.raises(SystemExit):
            characters.main(list(arguments))
        assert message in capsys.readouterr().err


def test_text_of_ones_own(characters, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("Too short to learn anything from.")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\xfa")
    for name, message in {
        "short.txt": "has 33 characters without repeated paragraphs; at least 20,000 are needed",
        "bytes.txt": "cannot read .*bytes.txt: 'utf-8' codec",
        "none.txt": "cannot read .*none.txt: .*No such file",
    }.items():
        with pytest.raises(SystemExit, match=f"^characters.py: .*{message}"):
            characters.main(["--text", str(tmp_path / name)])


def test_text_is_found_wherever_some_is(characters, monkeypatch: pytest.MonkeyPatch) -> None:
    text = importlib.import_module("characters_text")
    everything = text.find_text()
    monkeypatch.setattr(text, "PACKAGES", ("no-such-package", "torch"))
    less = text.find_text()
    assert text.LEAST < len(less) <= len(everything)
    monkeypatch.setattr(text, "PACKAGES", ())
    monkeypatch.setattr(text.sysconfig, "get_path", lambda _: "/nowhere/lib")
    assert text.LEAST < len(text.find_text()) < len(less)  # from the topics of Python's help()
    monkeypatch.setattr(pydoc_data.topics, "topics", {})
    with pytest.raises(SystemExit, match="name a text of your own with --text FILE"):
        text.find_text()


def test_held_out_text_shares_no_paragraph(characters) -> None:
    text = importlib.import_module("characters_text")
    assert list(
        text.paragraphs(["The  same words,\nhere and there.\n\n", "the same WORDS here"])
    ) == ["The same words, here and there."]
    assert not list(text.paragraphs(["====== ======\nbut a table of columns\n====== ======"]))
    learnt, held_out = text.split(text.find_text())
    assert not set(learnt.splitlines()) & set(held_out.splitlines())
    assert 0.05 < len(held_out) / len(learnt) < 0.2
    assert text.unigram_bits("abab", "abab", "?ab") == pytest.approx(-math.log2(3 / 7))
