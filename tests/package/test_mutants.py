"""The tables of mutants match the sources, and mutants can be built for another machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mutants import run
from tests.mutants.run import chosen
from tests.mutants.tables import ROOT, Mutant, MutantError, read, read_all
from tests.mutants.tree_copy import Copy, Libraries

ENTRY = """
[[mutant]]
name = "one"
what = "a number is 2"
file = "a.py"
killed_by = 'tests/test_a.py -k "two or three"'
find = '= 1'
replace = '= 2'
"""


def test_every_mutant_fits_the_sources() -> None:
    mutants = read_all()
    assert mutants
    for mutant in mutants:
        mutant.of((ROOT / mutant.file).read_text())
        files = [word.split("::")[0] for word in mutant.killers if word.startswith("tests/")]
        assert files and all((ROOT / file).is_file() for file in files), mutant.name


def test_of_one_file_and_one_test_there_are_two_mutants_at_most() -> None:
    places = [(mutant.file, mutant.killers) for mutant in read_all()]
    assert [place for place in set(places) if places.count(place) > 2] == []


def test_the_record_holds_mutants_that_were_killed() -> None:
    record = json.loads((ROOT / "tests/mutants/record.json").read_text())
    names = {mutant.name for mutant in read_all()}
    killed = {name for name, entry in record.items() if entry["verdict"].startswith("killed")}
    assert sorted(record.keys() - killed) == [], "not killed; see --record in docs/dev/building.md"
    assert sorted(record.keys() - names) == [], "entries of mutants that are gone"


def test_a_mutant_is_what_its_entry_says() -> None:
    (mutant,) = read(ENTRY, "family/table")
    assert mutant.killers == ("tests/test_a.py", "-k", "two or three")
    assert mutant.table == "family/table" and not mutant.needs_cuda
    assert mutant.of("x = 1\ny = 3\n") == "x = 2\ny = 3\n"
    for text, count in {"x = 3": 0, "x = 1\ny = 1": 2}.items():
        with pytest.raises(MutantError, match=f"`find` must occur once in a.py, got {count} times"):
            mutant.of(text)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("file =", "path =", "the fields must be file, find, .* got find, killed_by, "),
        ("find =", 'needs = ["gpu"]\nfind =', "needs must be cuda, or cuda and full, got"),
        ("find =", 'needs = ["full"]\nfind =', "needs must be cuda, or cuda and full, got"),
        ("= 2'", "= 1'", "`replace` must differ from `find`"),
    ],
)
def test_a_wrong_entry_is_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(MutantError, match=message):
        list(read(ENTRY.replace(old, new), "table"))


def test_mutants_are_chosen_by_name_by_pattern_and_by_table() -> None:
    table = chosen(["recurrent/grid", "cuda_grid_stale_h"])
    assert {mutant.table for mutant in table} == {"recurrent/grid"}
    assert chosen(["tests/mutants/recurrent/grid.toml"]) == table
    assert {m.name for m in chosen(["scale_out_with_gra?"])} == {"scale_out_with_grad"}
    assert chosen([]) == read_all()
    with pytest.raises(SystemExit, match="no such mutant: nothing_of_this_name"):
        chosen(["nothing_of_this_name"])


def test_a_record_has_verdicts_of_mutants_that_there_are(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    survived, killed, other = chosen(["scale_gradient_sign", "scale_stale_factor", "sum_dropped"])
    entry = {"date": "2026-01-01", "machine": "CPU", "verdict": "SURVIVED"}
    path.write_text(json.dumps({"a_mutant_that_is_gone": entry, survived.name: entry}))
    record = run.Record(path)
    assert json.loads(path.read_text()) == {survived.name: entry}
    record.add(killed, "killed by its time, over 180 s", "NVIDIA H200")
    record.add(other, "built", "CPU")
    again = run.Record(path)
    assert set(again.found) == {survived.name, killed.name}
    assert again.found[killed.name]["machine"] == "NVIDIA H200"
    assert [again.has_killed(m) for m in (survived, killed, other)] == [False, True, False]


def test_libraries_of_mutants_travel(tmp_path: Path) -> None:
    """A copy of the tree on another machine finds the compiled libraries in their usual place."""

    class Compiled(Copy):
        def build(self) -> bool:
            (self.library / "libtreadle_kernels.so").write_text(self.gpu)
            return self.gpu != "broken"

        @property
        def library(self) -> Path:
            return self.folder / "python_pkg" / "treadle" / "lib"

    copies = {name: Compiled(tmp_path / name, True, name) for name in ("one", "two", "broken")}
    for copy in copies.values():
        copy.library.mkdir(parents=True)
    kept = Libraries(tmp_path / "kept")
    assert kept.put(copies["one"], "error")
    assert not kept.put(copies["broken"], "other")
    assert Libraries(take=kept.keep).put(copies["two"], "error")
    assert (copies["two"].library / "libtreadle_kernels.so").read_text() == "one"
    assert not (tmp_path / "kept" / "other").exists()


def test_mutants_are_built_without_cuda_for_checking_or_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    built: list[tuple[str, bool, bool]] = []

    class Fake(Copy):
        def refresh(self) -> None:
            (self.folder / "python_pkg" / "treadle" / "lib").mkdir(parents=True, exist_ok=True)

        def take(self, built: Copy) -> None:
            self.refresh()

        def plant(self, mutant: Mutant) -> None:
            (self.folder / "now").write_text(mutant.name)

        def restore(self, mutant: Mutant, built: Copy) -> None:
            pass

        def build(self) -> bool:
            now = self.folder / "now"
            name = now.read_text() if now.exists() else "none"
            built.append((name, self.cuda, self.for_checking))
            return True

    monkeypatch.setattr(run, "Copy", Fake)
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run, "visible_gpus", list)
    names = ["scale_gradient_sign", "cuda_grid_stale_h", "cuda_grid_put_back_too_early"]
    monkeypatch.setattr("sys.argv", ["run.py", "--build", str(tmp_path / "kept"), *names])
    assert run.main() == 0
    kinds = {name: kind for name, *kind in built if name != "none"}
    without, checking, full = [False, True], [True, True], [True, False]
    assert kinds == dict(zip(names, (without, checking, full), strict=True))
    kept = {path.name for path in (tmp_path / "kept").iterdir()}
    assert kept == {*names, "cpu", "cuda", "cuda-full"}
    assert "3 of 3 built, 0 skipped" in capsys.readouterr().out
