"""What the documents say is so: files, commands, names, the lines of use, and every number."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import treadle
from benchmarks import readme_numbers, sine_layer_page, sine_page
from docs import sine_error
from tests import installed

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = (
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"),
    *("tests/GPU.md", "benchmarks/results/README.md", "docs/sine.md", "docs/layer.md"),
    "docs/sine_layer.md",
)
README = (ROOT / "README.md").read_text()
SINE = (ROOT / "docs" / "sine.md").read_text()
SUFFIXES = (".py", ".md", ".h", ".cpp", ".cu", ".cuh", ".sh", ".txt", ".toml", ".json", ".png")
MADE = ("build/", "IMAGE.png", "OLD.json", "libtreadle.so")  # by building or by the reader


def code(text: str) -> Iterator[str]:
    """What stands in backquotes or in a fenced block, line by line."""
    fenced = re.compile(r"^```\w*\n(.*?)^```", re.S | re.M)
    for block in fenced.findall(text):
        yield from block.splitlines()
    yield from re.findall(r"`([^`\n]+)`", fenced.sub("", text))


def words(document: str) -> Iterator[str]:
    for line in code((ROOT / document).read_text()):
        yield from line.partition("#")[0].split()


def exists(name: str, document: str) -> bool:
    """Below the root, beside the document, or as the end of some tracked path."""
    if (ROOT / name).exists() or (ROOT / document).parent.joinpath(name).exists():
        return True
    folders = ("benchmarks", "csrc", "docs", "kernels", "python_pkg", "tests")
    return any(path for folder in folders for path in ROOT.glob(f"{folder}/**/{name}"))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_to_files(document: str) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", (ROOT / document).read_text())
    local = [link.partition("#")[0] for link in links if not link.startswith("http")]
    missing = [link for link in local if not (ROOT / document).parent.joinpath(link).exists()]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS)
def test_paths_in_code_exist(document: str) -> None:
    named = {word.strip(",;:()\"'") for word in words(document)}
    paths = {
        word
        for word in named
        if (word.endswith(SUFFIXES) or re.fullmatch(r"\.?[a-z_]+/[\w./-]*", word))
        and not word.startswith(("--", *MADE))
        and not re.search(r"[<>*$={}]|[A-Z]{4,}-[A-Z]", word)
    }
    assert not [path for path in sorted(paths) if not exists(path, document)]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_make_targets_exist(document: str) -> None:
    rules = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    text = "\n".join(code((ROOT / document).read_text()))
    for targets in re.findall(r"\bmake ((?:[a-z-]+ ?)+)", text):
        assert set(targets.split()) <= set(rules), targets


def test_commands_know_their_options() -> None:
    """Every `python SCRIPT --option` of the documents is in that script's --help."""
    command = re.compile(r"python (-m treadle|[a-z]+/[\w/]+\.py)((?: --?[\w-]+)*)")
    text = "\n".join(line for name in DOCUMENTS for line in code((ROOT / name).read_text()))
    found = {match.groups() for match in command.finditer(text)}
    assert {script for script, _ in found} >= {"-m treadle", "examples/digits.py"}
    for script in {script for script, _ in found}:
        arguments = script.split() if script.startswith("-m") else [str(ROOT / script)]
        done = installed.python(*arguments, "--help")
        assert done.returncode == 0, done.stderr
        for options in (options for other, options in found if other == script):
            assert all(option in done.stdout for option in options.split()), (script, options)


def test_gpu_script_knows_its_pieces() -> None:
    script = (ROOT / "benchmarks" / "gpu.sh").read_text()
    command = re.search(
        r"^benchmarks/gpu\.sh OUTDIR (.+)$", (ROOT / "tests/GPU.md").read_text(), re.M
    )
    assert command is not None
    for piece in command[1].split(" then "):
        assert f"run_{piece}()" in script


def test_environment_variables_are_read_somewhere() -> None:
    folders = ("csrc", "tools", "python_pkg", "benchmarks", "tests")
    sources = "".join(
        path.read_text()
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".h", ".cpp", ".py", ".sh") and path != Path(__file__).resolve()
    )
    text = "\n".join((ROOT / name).read_text() for name in DOCUMENTS)
    names = set(re.findall(r"`((?:TREADLE|TORCH|MAX|CUDA)_[A-Z_]+|C?XX\w*|LDFLAGS)\b", text))
    assert names and all(name in sources for name in names), names


def test_lines_of_use() -> None:
    found = re.search(r"^```python\n(.*?)^```", README, re.S | re.M)
    assert found is not None
    assert len([line for line in found[1].splitlines() if line.strip()]) <= 10
    done = installed.python("-c", found[1], CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "torch.Size([8, 16, 32]) []\n"


def test_table_of_ops_has_every_op_with_its_arguments() -> None:
    named: set[str] = set()
    for line in re.findall(r"^\| (`.*?) \|", README, re.M):
        for name, arguments in re.findall(r"`(\w+)(?:\((.*?)\))?`", line):
            named.add(name)
            known = inspect.signature(getattr(treadle, name)).parameters.values()
            if arguments:
                written = [word.strip().partition("=") for word in arguments.split(",")]
                kept = [(name, default) for name, _, default in written if name != "*"]
                empty = inspect.Parameter.empty
                assert kept == [
                    (p.name, "" if p.default is empty else str(p.default)) for p in known
                ]
    functions = {name for name in treadle.__all__ if inspect.isfunction(getattr(treadle, name))}
    assert named == functions - {"launch_info"}


def test_names_of_the_package_exist() -> None:
    for document in DOCUMENTS:
        text = "\n".join(code((ROOT / document).read_text()))
        for name in re.findall(r"(?<![\w./])treadle((?:\.[A-Za-z]\w+)+)", text):
            found: object = treadle
            for part in name.strip(".").split("."):
                found = treadle._build.bindings() if part == "_C" else getattr(found, part)


def test_numbers_are_those_of_the_committed_results() -> None:
    assert readme_numbers.rewritten(README) == README, "make readme-numbers"
    others = readme_numbers.OTHERS.read_text()
    assert readme_numbers.rewritten_others(others) == others, "make readme-numbers"
    page = sine_page.rewritten(SINE, readme_numbers.machines())
    assert page == SINE, "make readme-numbers"
    layer = sine_layer_page.PAGE.read_text()
    again = sine_layer_page.rewritten(layer, readme_numbers.machines())
    assert again == layer, "make readme-numbers"


def test_no_measured_number_stands_outside_of_the_block() -> None:
    before, rest = README.split(readme_numbers.BEGIN)
    outside = before + rest.split(readme_numbers.END)[1]
    speed = r"\d\s*(?:µs|ms|TB/s|[TG]FLOP|GB/s)|\d\s*× (?:faster|slower)"
    assert not re.findall(speed, outside)
    prose = re.sub(r"<!-- (\w+): begin -->.*?<!-- \1: end -->", "", SINE, flags=re.S)
    assert not re.findall(rf"{speed}|\d\s*ulp", prose)


def test_figures_of_sine_are_those_of_this_build() -> None:
    """treadle's, whose bits do not depend on the machine."""
    found = sine_page.figures()
    assert found["halves"].keys() == sine_error.HALVES.keys()
    for name, pair in sine_error.FUNCTIONS.items():
        worst = found["float32"][name]["treadle"]
        y = pair["treadle"](torch.tensor(worst["at"]))
        error = sine_error.exact_error(name, worst["at"], float(y))
        assert round(error, 4) == worst["ulp"], f"python docs/sine_error.py: {name} has {error}"
        for label, dtype in sine_error.HALVES.items():
            now = sine_error.misrounded(name, "treadle", dtype)
            assert found["halves"][label][name]["treadle"] == now, "python docs/sine_error.py"
    assert (ROOT / "docs" / "sine_error.png").stat().st_size < 150_000


def test_speeds_of_sine_are_shares_of_a_copy() -> None:
    times = {"treadle": {"median_us": 2.0}, "torch.cos": {"median_us": 8}, "copy": {"median_us": 1}}
    row = {"series": "argument", "op": "cosine", "dtype": "float32", "times": times}
    rows = [row | {"argument": argument} for argument in ("1 % large", "30", "1")]
    facts = {"gpu": "a GPU", "torch": "2.11.0"}
    path = readme_numbers.RESULTS / "gpu" / "a.json"
    made = "\n".join(sine_page.speeds([([path], facts, [*rows, {"refused": "an error"}])]))
    assert "| arguments: this × N(0,1) | 1 | 30 | 1 % large |" in made
    assert "| cosine float32 | 0.50 / 0.12 | 0.50 / 0.12 | 0.50 / 0.12 |" in made
    assert list(sine_page.speeds([([path], facts, [])])) == [sine_page.NO_SPEEDS]


def test_versions_agree() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(r"^## (\S+)", changelog, re.M)[1] == treadle.__version__  # type: ignore[index]
    pins = re.findall(r"^(torch|setuptools)(\S+)$", (ROOT / "requirements.txt").read_text(), re.M)
    assert len(pins) == 2
    torch_pin = dict(pins)["torch"]
    assert f"torch{torch_pin}" in README
    newest = re.search(r"^newest=(\S+)", (ROOT / ".ci/run").read_text(), re.M)
    assert newest is not None and f"torch 2.11.0 and {newest[1]}" in README


def test_documents_are_short() -> None:
    assert len(README.splitlines()) <= 120


def test_readme_numbers_finds_what_went_badly(tmp_path: Path) -> None:
    """A block of a made-up run: the missed bar, the slower row and the refusal are named."""

    def row(key: str, ours: float, rival: float, limit: float | None = None) -> dict[str, object]:
        times = {"treadle": {"median_us": ours}, "torch.add": {"median_us": rival}}
        made = {"key": key, "label": key, "group": "1 GiB a tensor, CUDA", "times": times}
        made |= {"fastest_rival": "torch.add", "ratio": ours / rival, "busy": False}
        if limit is not None:
            made["bar"] = {"text": "a bar", "limit_us": limit, "reached": ours <= limit}
        return made

    rows = [row("good", 1, 2, 2), row("missed", 3, 2, 2), row("slower", 1.5, 1)]
    refused = {"key": "wrong", "label": "wrong", "group": "views, CUDA", "refused": "an error"}
    (table, below) = (
        "\n".join(readme_numbers.lines([*rows, refused])),
        "\n".join(readme_numbers.losses([*rows, refused])),
    )
    assert "| 1 GiB a tensor | 3 | 1.50 | 0.50 | 1.50 | 1 of 2 |" in table
    assert "missed by 50.0% (a bar)" in below and "slower 1.50 × torch.add" in below
    assert "(1): wrong" in below and "good" not in below
