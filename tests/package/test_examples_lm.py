"""The language model of examples/causal_lm learns, generates, and is saved and loaded. The models
of examples/drop_in have the same losses as with torch's layers."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.package.test_examples import DEVICES, EXAMPLES

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")

LM, DROP_IN = EXAMPLES / "causal_lm", EXAMPLES / "drop_in"
FIGURES = EXAMPLES.parent / "docs" / "figures"
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True},
    "beams": {"do_sample": False, "num_beams": 4},
    "sampled beams": {"do_sample": True, "num_beams": 3},
}
KINDS = [("lstm", "treadle"), ("gru", "treadle"), ("lltm", "treadle"), ("lstm", "torch")]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports a module from these folders."""
    for folder in (EXAMPLES, LM, DROP_IN):
        monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    threads = torch.get_num_threads()
    yield importlib.import_module
    torch.set_num_threads(threads)


@pytest.fixture
def lm(load: Any) -> types.ModuleType:
    return load("recurrent_lm")


def make(lm: types.ModuleType, mixer: str, kernels: str = "treadle", **sizes: int) -> Any:
    """Makes a small model whose scores are far from uniform."""
    torch.manual_seed(0)
    given = {"hidden_size": 16, "num_hidden_layers": 2} | sizes
    model = lm.RecurrentForCausalLM(lm.RecurrentLMConfig(mixer=mixer, kernels=kernels, **given))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)
    return model.eval()


def prompt(rows: int = 2) -> torch.Tensor:
    return torch.randint(1, 256, (rows, 7), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mixer, kernels", KINDS)
def test_generation_with_cache_equals_without(
    lm: types.ModuleType, mixer: str, kernels: str, way: str
) -> None:
    model, text = make(lm, mixer, kernels), []
    read: list[int] = []
    model.embedding.register_forward_hook(lambda _, given, __: read.append(given[0].size(1)))
    for use_cache in (True, False):
        torch.manual_seed(2)
        text.append(model.generate(prompt(), max_new_tokens=10, use_cache=use_cache, **WAYS[way]))
    assert torch.equal(*text)
    # The number of tokens read at each step. With a cache these are the prompt, then one new token.
    assert read[:10] == [7] + [1] * 9 and read[10:] == list(range(7, 17))


def test_beams_depend_on_the_order_of_the_cache(
    lm: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If these results did not differ, the test above could not detect beams in the wrong order."""
    model, rules = make(lm, "lstm"), {"max_new_tokens": 10, **WAYS["beams"]}
    right = model.generate(prompt(), **rules)
    monkeypatch.setattr(lm.RecurrentCache, "reorder_cache", lambda *_: None)
    assert not torch.equal(right, model.generate(prompt(), **rules))


@pytest.mark.parametrize("mixer", ["lstm", "gru", "lltm"])
def test_padding_on_the_left_changes_nothing(lm: types.ModuleType, mixer: str) -> None:
    model, rows = make(lm, mixer), prompt(2)
    padded = torch.cat([torch.zeros(2, 3, dtype=torch.long), rows], 1)
    padded[1, :5], mask = 0, torch.ones_like(padded)
    mask[0, :3], mask[1, :5] = 0, 0
    rules = {"max_new_tokens": 8, "do_sample": False}
    found = model.generate(padded, attention_mask=mask, **rules)
    for row, begin in enumerate((3, 5)):
        alone = model.generate(padded[row : row + 1, begin:], **rules)
        assert torch.equal(found[row, begin:], alone[0])
    theirs = make(lm, "lstm", "torch")
    with pytest.raises(ValueError, match="^forward: attention_mask must be all ones with kern"):
        theirs.generate(padded, attention_mask=mask, **rules)


def test_text_goes_on_from_a_returned_cache(lm: types.ModuleType) -> None:
    model, rules = make(lm, "lstm"), {"do_sample": False}
    whole = model.generate(prompt(), max_new_tokens=9, **rules)
    part = model.generate(prompt(), max_new_tokens=4, return_dict_in_generate=True, **rules)
    assert part[lm.CACHE].get_seq_length() == 7 + 3
    rest = {lm.CACHE: part[lm.CACHE], "max_new_tokens": 5}
    assert torch.equal(model.generate(part.sequences, **rest, **rules), whole)


@pytest.mark.parametrize("mixer, kernels", KINDS)
def test_saved_model_is_loaded_by_its_kind(
    lm: types.ModuleType, mixer: str, kernels: str, tmp_path: Path
) -> None:
    model = make(lm, mixer, kernels)
    model.save_pretrained(tmp_path)
    loaded = lm.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(loaded) is type(model) and loaded.config.mixer == mixer
    state = loaded.state_dict()
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(loaded(prompt()).logits, model(prompt()).logits)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mixer, kernels", KINDS)
def test_bfloat16(lm: types.ModuleType, mixer: str, kernels: str, device: str) -> None:
    """Scores stay near those in float32, in one call and step by step with the cache."""
    model, ids = make(lm, mixer, kernels).to(device), prompt().to(device)
    with torch.no_grad():
        exact = model(ids).logits
        model.to(torch.bfloat16)
        whole, cache, parts = model(ids).logits, None, []
        for place in range(ids.size(1)):
            step = model(ids[:, place : place + 1], cache=cache, use_cache=True)
            cache = step[lm.CACHE]
            parts.append(step.logits)
    limit = 0.05 * exact.abs().max().item()
    assert whole.dtype == torch.bfloat16 and not torch.equal(whole.float(), exact)
    torch.testing.assert_close(whole.float(), exact, rtol=0, atol=limit)
    torch.testing.assert_close(torch.cat(parts, 1).float(), exact, rtol=0, atol=limit)
    if kernels == "treadle" and mixer != "gru":
        assert [states[1].dtype for states in cache.states] == [torch.float32] * 2
    assert model.generate(ids, max_new_tokens=4, **WAYS["beams"]).shape == (2, 11)


def test_lltm_is_held_in_training_alone(lm: types.ModuleType) -> None:
    model, ids = make(lm, "lltm"), prompt()
    plain = model(ids, labels=ids).loss
    pulled = model.train()(ids, labels=ids).loss
    assert pulled > plain
    model.config.cell_pull = 0.0
    assert torch.equal(model(ids, labels=ids).loss, plain)


def test_says_which_mixers_there_are(lm: types.ModuleType) -> None:
    with pytest.raises(ValueError, match="mixer/kernels must be one of lstm/treadle, .*lltm/torch"):
        lm.RecurrentLMConfig(mixer="lltm", kernels="torch")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    words = "the cat and a dog of this house see that mouse run over any old hill with joy".split()
    order = torch.randint(0, len(words), (2000, 8), generator=torch.Generator().manual_seed(0))
    lines = [" ".join(words[word] for word in row) for row in order.tolist()]
    path.write_text("\n\n".join(lines))
    return path


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("device", DEVICES)
def test_run(
    load: Any, text: Path, device: str, bf16: bool, tmp_path: Path, monkeypatch, capsys
) -> None:
    """Losses fall, and equal those of torch's layer within rounding. The float32 run also draws
    pictures."""
    train = load("train_lm")
    loads = [
        load("lm_speed").Workload(task, "float32", 2, 8) for task in ("training", "generation")
    ]
    monkeypatch.setattr(train, "LARGE", {"layers": 1})
    monkeypatch.setattr(train, "CPU_LOADS", loads)
    monkeypatch.setattr(train, "CUDA_LOADS", loads)
    speed = load("lm_speed")
    monkeypatch.setattr(speed, "SECONDS", 0.01)
    given = ["--device", device, "--steps", "40", "--hidden", "32", "--text", str(text)]
    given += ["--output", str(tmp_path / "model"), *(["--bf16"] if bf16 else [])]
    record = train.main(given if bf16 else [*given, "--figures", str(tmp_path / "figures")])
    ours, theirs = (record["runs"][side]["losses"] for side in ("treadle", "torch"))
    assert len(ours) == len(theirs) == 40
    assert ours[0] == pytest.approx(8.0, abs=0.3) and ours[-1] < ours[0] - 2
    # On a GPU, float32 products are rounded too: torch allows TF32 in recurrent layers.
    near = 0.1 if bf16 else 0.02 if device == "cuda" else 1e-4
    assert ours == pytest.approx(theirs, abs=near)
    held_out = [run["held_out"] for run in record["runs"].values()]
    assert max(held_out) < ours[0] - 2 and held_out == pytest.approx(held_out[::-1], abs=0.05)
    assert train.PROMPT in capsys.readouterr().out
    assert (tmp_path / "model" / "config.json").is_file()
    if bf16:
        return
    path = tmp_path / "figures" / f"causal_lm_{device}.json"
    assert json.loads(path.read_text())["runs"] == record["runs"]
    assert all(min(row["tokens_per_s"].values()) > 0 for row in record["speeds"])
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("missing", ["transformers", "accelerate"])
def test_says_what_it_needs(missing: str) -> None:
    code = (
        f"import runpy, sys; sys.modules[{missing!r}] = None; sys.path.insert(0, {str(LM)!r}); "
        f"runpy.run_path({str(LM / 'train_lm.py')!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("train_lm.py: ")
    assert missing in done.stderr
    assert done.stderr.endswith("what it needs: pip install 'transformers>=4.50' accelerate\n")


def test_speeds_alone(load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--speeds-only does not need accelerate. An LLTM has no torch layer to compare with."""
    train, speed = load("train_lm"), load("lm_speed")
    monkeypatch.setattr(speed, "SECONDS", 0.01)
    monkeypatch.setattr(train, "CPU_LOADS", [speed.Workload("training", "bfloat16", 2, 8)])
    monkeypatch.setattr(train.importlib.util, "find_spec", lambda _: None)
    given = ["--device", "cpu", "--speeds-only", "--hidden", "16", "--mixer", "lltm"]
    record = train.main([*given, "--figures", str(tmp_path)])
    assert record["runs"] == {} and record["speeds"][0]["tokens_per_s"].keys() == {"treadle"}
    assert (tmp_path / "causal_lm_cpu.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("path", sorted(FIGURES.glob("causal_lm_*.json")), ids=lambda p: p.stem)
def test_committed_figures(path: Path) -> None:
    record = json.loads(path.read_text())
    assert {"date", "torch", "transformers", "load_before"} <= record["machine"].keys()
    assert all(row["tokens_per_s"].keys() == {"treadle", "torch"} for row in record["speeds"])
    assert path.with_suffix(".png").stat().st_size < 150_000
    if path.stem == "causal_lm_cuda" and not record["runs"]:  # made with --speeds-only
        return
    ours, theirs = (record["runs"][side] for side in ("treadle", "torch"))
    # The GPU ran in bfloat16, and training amplifies its rounding.
    steps = 12 if path.stem == "causal_lm_cuda" else 20
    assert ours["losses"][:steps] == pytest.approx(theirs["losses"][:steps], abs=0.02)
    assert (
        ours["held_out"] == pytest.approx(theirs["held_out"], abs=0.05) and ours["held_out"] < 2.5
    )


def test_word_language_model(load: Any, tmp_path: Path) -> None:
    """Both models draw the same dropout masks."""
    path = tmp_path / "words.json"
    sizes = ("--device", "cpu", "--steps", "12", "--width", "16", "--length", "9", "--json", path)
    load("word_language_model").main(list(map(str, sizes)))
    found = json.loads(path.read_text())
    assert found["replaced"] == ["rnn"] and found["words"] > 1000
    theirs, ours = found["losses"].values()
    assert len(theirs) == 12 and theirs[0] == pytest.approx(math.log(found["words"]), rel=0.02)
    assert ours == pytest.approx(theirs, rel=1e-4) and min(ours) < ours[0] - 0.3
    assert {len(times) for times in found["seconds"].values()} == {12}


def test_time_sequence_prediction(load: Any, tmp_path: Path) -> None:
    path = tmp_path / "waves.json"
    sizes = {"steps": 2, "waves": 8, "length": 60, "width": 8, "future": 5}
    given = [f"--{name}={value}" for name, value in sizes.items()]
    load("time_sequence_prediction").main([*given, "--device", "cpu", "--json", str(path)])
    found = json.loads(path.read_text())
    assert found["replaced"] == ["rnn"] and found["settings"] == sizes | {"seed": 0}
    for theirs, ours in (found["losses"].values(), found["tested"].values()):
        assert ours == pytest.approx(theirs, rel=1e-6)
        assert len(ours) == 2 and ours[1] < ours[0]


@pytest.mark.parametrize("path", sorted(FIGURES.glob("drop_in_*.json")), ids=lambda p: p.stem)
def test_committed_losses(path: Path) -> None:
    record = json.loads(path.read_text())
    theirs, ours = record["losses"].values()
    # The GPU ran in TF32, and training amplifies its rounding.
    steps = 30 if path.stem == "drop_in_words_cuda" else len(ours)
    assert record["replaced"] == ["rnn"] and ours[:steps] == pytest.approx(theirs[:steps], rel=1e-2)
    assert min(ours) < 0.95 * ours[0] and {"date", "torch"} <= record["machine"].keys()
