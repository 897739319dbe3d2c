"""The documents are correct: the files, commands, names and numbers that they mention, and the
usage example."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import treadle
from benchmarks.pages import performance_page, readme_numbers, sine_page, tables, targets_page
from docs.figures import sine_error
from tests.support import installed
from tests.support.pages import snippets
from tools import wheel

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = (
    *(
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "SECURITY.md",
        "benchmarks/results/README.md",
    ),
    *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md")),
)
README = (ROOT / "README.md").read_text()
SINE = (ROOT / "docs" / "sine.md").read_text()
SUFFIXES = (".py", ".md", ".h", ".cpp", ".cu", ".cuh", ".sh", ".txt", ".toml", ".json", ".png")
MADE = (
    "build/",
    "dist/",
    "IMAGE.png",
    "OLD.json",
    "libtreadle.so",
    "facts.json",
)  # made by the build or by the reader


def code(text: str) -> Iterator[str]:
    """Yields the text in backquotes and fenced blocks, line by line."""
    fenced = re.compile(r"^```\w*\n(.*?)^```", re.S | re.M)
    for block in fenced.findall(text):
        yield from block.splitlines()
    yield from re.findall(r"`([^`\n]+)`", fenced.sub("", text))


def words(document: str) -> Iterator[str]:
    for line in code((ROOT / document).read_text()):
        yield from line.partition("#")[0].split()


def exists(name: str, document: str) -> bool:
    """Whether the file exists in the root or next to the document, or anywhere below the folders of
    sources and pages."""
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


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes from a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_to_headings(document: str) -> None:
    links = re.findall(r"\]\(([^)\s#:]*)#([^)\s]+)\)", (ROOT / document).read_text())
    pages = {
        name: (ROOT / document).parent / name if name else ROOT / document for name, _ in links
    }
    assert not [link for link in links if link[1] not in anchors(pages[link[0]])]


# jets.md, deploy.md, coming_from.md and write_a_cell.md have tests of their own.
@pytest.mark.parametrize(
    "page",
    [
        "recurrent.md",
        "torch_tools.md",
        "training_step.md",
        "torchrl.md",
        "sine_linear.md",
        "snake.md",
    ],
)
def test_python_of_the_pages_runs(page: str) -> None:
    names: dict[str, object] = {"torch": torch, "treadle": treadle}
    for heading, block in snippets(page):
        program = block.replace('"cuda"', '"cpu"')
        exec(compile(program, f"{page}, {heading}", "exec"), names)


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
    """Every option in a `python SCRIPT --option` of the documents is in the script's --help."""
    command = re.compile(r"python (-m treadle|[a-z]+/[\w/]+\.py)((?: --?[\w-]+)*)")
    text = "\n".join(line for name in DOCUMENTS for line in code((ROOT / name).read_text()))
    found = {match.groups() for match in command.finditer(text)}
    assert {script for script, _ in found} >= {"-m treadle", "examples/digits.py"}
    scripts = {s: s if s.startswith("-m") else str(ROOT / s) for s, _ in found}
    path = os.pathsep.join([str(installed.PACKAGE.parent), str(ROOT)])
    command = ("-m", "tests.support.helps", *scripts.values())
    done = installed.python(*command, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    helps = json.loads(done.stdout)
    for script, options in found:
        status, said = helps[scripts[script]]
        assert status == 0, said
        assert all(option in said for option in options.split()), (script, options)


def test_gpu_script_knows_its_pieces() -> None:
    script = (ROOT / "benchmarks" / "gpu.sh").read_text()
    command = re.search(
        r"^benchmarks/gpu\.sh OUTDIR (.+)$", (ROOT / "docs/dev/gpu-runs.md").read_text(), re.M
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
    assert done.stdout == "torch.Size([8, 20, 128]) torch.Size([1000, 1, 2])\n"


def test_commands_that_install_are_run_in_a_fresh_tree() -> None:
    """tools/check_install.sh runs the README's block of install commands. CI runs this script."""
    block = re.search(r"^## Install$.*?^```sh\n(.*?)^```", README, re.S | re.M)
    assert block is not None
    source = "source tools/fresh_environment.sh; install_commands README.md"
    done = subprocess.run(["bash", "-c", source], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == block[1] and done.returncode == 0
    commands = [line.partition("#")[0].strip() for line in block[1].splitlines()]
    assert commands == [
        "pip install -r requirements.txt",
        "pip install --no-build-isolation .",
        "python -m treadle",
    ]
    script = (ROOT / "tools" / "check_install.sh").read_text()
    assert 'install_commands "$work/tree/README.md" >"$work/commands"' in script
    assert 'bash -eux "$work/commands"' in script


def test_tests_that_pages_name_exist() -> None:
    text = "\n".join((ROOT / name).read_text() for name in DOCUMENTS)
    found = set(re.findall(r"(tests/[\w/]+\.py)::(\w+)", text))
    assert len(found) > 20
    missing = [f"{f}::{t}" for f, t in found if f"def {t}(" not in (ROOT / f).read_text()]
    assert not missing


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    links = {link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", index)}
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")}
    findings = {page for page in pages if page.startswith("dev/findings/")}
    assert pages - findings - {"README.md"} <= links


def test_every_finding_is_in_their_index() -> None:
    folder = ROOT / "docs" / "dev" / "findings"
    index = (folder / "README.md").read_text()
    links = set(re.findall(r"\]\(([\w.]+)\)", index))
    assert {path.name for path in folder.glob("*.md")} - {"README.md"} == links


def test_names_of_the_package_exist() -> None:
    for document in DOCUMENTS:
        text = "\n".join(code((ROOT / document).read_text()))
        for name in re.findall(r"(?<![\w./])treadle((?:\.[A-Za-z]\w+)+)", text):
            # tests/interop calls all of these if their packages are installed.
            if name.startswith((".distributed", ".jax", ".onnx", ".torchrl")):
                continue
            found: object = treadle
            for part in name.strip(".").split("."):
                found = treadle._build.bindings() if part == "_C" else getattr(found, part)


@pytest.mark.parametrize("page", readme_numbers.PAGES, ids=lambda page: page.stem)
def test_numbers_are_those_of_the_committed_results(page: Path) -> None:
    text = page.read_text()
    assert readme_numbers.PAGES[page](text, tables.machines()) == text, "run make readme-numbers"


@pytest.mark.parametrize("page", readme_numbers.PAGES, ids=lambda page: page.stem)
def test_no_measured_number_stands_outside_of_the_blocks(page: Path) -> None:
    prose = re.sub(r"<!-- (\w+): begin -->.*?<!-- \1: end -->", "", page.read_text(), flags=re.S)
    assert not re.findall(r"\d\s*(?:µs|ms|TB/s|[TG]FLOP|GB/s)|\d\s*× (?:faster|slower)", prose)


def test_figures_of_sine_are_those_of_this_build() -> None:
    """Checks only treadle's figures, because its bits do not depend on the machine."""
    found = sine_page.figures()
    assert found["halves"].keys() == sine_error.HALVES.keys()
    for name, pair in sine_error.FUNCTIONS.items():
        worst = found["float32"][name]["treadle"]
        y = pair["treadle"](torch.tensor(worst["at"]))
        error = sine_error.exact_error(name, worst["at"], float(y))
        assert round(error, 4) == worst["ulp"], (
            f"run python docs/figures/sine_error.py: {name} has {error}"
        )
        for label, dtype in sine_error.HALVES.items():
            now = sine_error.misrounded(name, "treadle", dtype)
            assert found["halves"][label][name]["treadle"] == now, (
                "run python docs/figures/sine_error.py"
            )
    assert (ROOT / "docs" / "figures" / "sine_error.png").stat().st_size < 150_000


def test_speeds_of_sine_are_shares_of_a_copy(tmp_path: Path) -> None:
    times = {"treadle": {"median_us": 2.0}, "torch.cos": {"median_us": 8}, "copy": {"median_us": 1}}
    row = {"series": "argument", "op": "cosine", "dtype": "float32", "times": times}
    rows = [row | {"argument": argument} for argument in ("1 % large", "30", "1")]
    facts = {"gpu": "a GPU", "torch": "2.11.0"}
    path, other = tmp_path / "a.json", tmp_path / "b.json"
    path.write_text(json.dumps({"rows": rows}))
    other.write_text('{"rows": [{"refused": "an error"}]}')
    found = ([path, other], facts, [*rows, {"refused": "an error"}])
    made = "\n".join(sine_page.speeds([found]))
    assert "a GPU, torch 2.11.0, [a.json](" in made and "b.json" not in made
    assert "| arguments: this × N(0,1) | 1 | 30 | 1 % large |" in made
    assert "| cosine float32 | 0.50 / 0.12 | 0.50 / 0.12 | 0.50 / 0.12 |" in made
    assert list(sine_page.speeds([([path], facts, [])])) == [sine_page.NO_SPEEDS]


def test_versions_agree() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(r"^## (\S+)", changelog, re.M)[1] == treadle.__version__  # type: ignore[index]
    pins = re.findall(r"^(torch|setuptools)(\S+)$", (ROOT / "requirements.txt").read_text(), re.M)
    assert len(pins) == 2
    torch_pin = dict(pins)["torch"]
    install = (ROOT / "docs" / "install.md").read_text()
    assert f"torch{torch_pin}" in install and f"torch {torch_pin.strip('=')}" in install
    oldest, *_, newest = (version.rpartition(".")[0] for version in wheel.TORCHES)
    assert f"torch {oldest} to {newest}" in README and f"torch {oldest} to {newest}" in install
    tested = re.search(r"^newest=(\S+)", (ROOT / ".ci/run").read_text(), re.M)
    assert tested is not None and f"{torch_pin.strip('=')} and {tested[1]}" in install


def test_readme_is_short() -> None:
    lines = README.splitlines()
    long = [line for line in lines if len(line) > 100 and not line.startswith(("|", "!["))]
    assert len(lines) <= 140 and not long
    picture = ROOT / "docs" / "figures" / "front_page.png"
    assert picture.stat().st_size < 250_000, "run docs/figures/front_page.py"


def test_pages_are_as_short_as_they_may_be() -> None:
    most = {"performance.md": 200, "recurrent.md": 250, "dev/how_recurrent_works.md": 250}
    for page, lines in most.items():
        assert len((ROOT / "docs" / page).read_text().splitlines()) <= lines, page


def row(key: str, ours: float, baseline: float, limit: float | None = None) -> tables.Row:
    times = {"treadle": {"median_us": ours}, "torch.add": {"median_us": baseline}}
    made: tables.Row = {"key": key, "label": key, "group": "1 GiB a tensor, CUDA", "times": times}
    made |= {"fastest_baseline": "torch.add", "ratio": ours / baseline, "busy": False}
    if limit is not None:
        made["target"] = {"text": "a target", "limit_us": limit, "reached": ours <= limit}
    return made


def test_targets_page_says_what_went_badly() -> None:
    """The page lists the missed target, the slower row and the refused row of a made-up run."""
    rows = [row("good", 1, 2, 2), row("missed", 3, 2, 2), row("slower", 1.5, 1)]
    refused = {"key": "wrong", "label": "wrong", "group": "views, CUDA", "refused": "an error"}
    table = "\n".join(targets_page.lines([*rows, refused]))
    below = "\n".join(targets_page.losses([*rows, refused]))
    assert "| 1 GiB a tensor | 3 | 1.50 | 0.50 | 1.50 | 1 of 2 |" in table
    assert "Targets missed: 1 of 2." in below and "| missed | 50.0% | a target |" in below
    assert "- slower: 1.50 × torch.add" in below and "timed: wrong (an error)" in below
    assert "good" not in below


def test_headline_is_of_the_training_rows_beside_their_baseline() -> None:
    shapes = [("training", 1.0), ("training", 2.0), ("training", 4.0), ("inference", 100.0)]
    rows = []
    for mode, speed in shapes:
        times = {"treadle": {"median_us": 1.0}, "nn.LSTM": {"median_us": speed}}
        facts = {"suite": "sweep_cells", "op": "lstm", "digits": "float16", "mode": mode}
        rows.append(facts | {"times": times, "key": f"cuda/sweep_cells/{speed}"})
    machine = {"device": "cuda", "gpu": "GPU", "torch": "2", "driver": "5", "date": "2026-11-22T"}
    made = " ".join(" ".join(readme_numbers.headline([([], machine, rows)])).split())
    assert "GPU, torch 2, driver 5, 2026-11-22:" in made
    assert "2.0 × in float16 (1.0 to 4.0" in made and "over 3 shapes" in made
    assert "sine" not in made and "Siren" not in made and "GRU" not in made
    assert list(readme_numbers.headline([])) == [performance_page.NONE_YET]
