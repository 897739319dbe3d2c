"""Tests the decisions of the build, without a CUDA toolkit, and what it compiles and recompiles."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import torch

from tools.native import build, cuda, host
from tools.native.graph import Graph

ROOT = Path(__file__).resolve().parents[2]
TORCH = host.Torch("2.11.0", "13.0", True, Path(torch.__file__).parent, ("sm_80", "sm_90"))
ASKED = ("TREADLE_CUDA", "TREADLE_CHECK_BUILD", "TORCH_CUDA_ARCH_LIST")
KNOWN = "sm_80 sm_86 sm_90 sm_100 sm_120"
FAKE_NVCC = """#!/bin/sh
case $1 in
  --version) echo "Cuda compilation tools, release {release}, V{release}.1" ;;
  --list-gpu-code) printf '%s\\n' {known} ;;
esac
"""


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*ASKED, "MAX_JOBS", "CXX", "CXXFLAGS", "LDFLAGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes a fake toolkit, whose nvcc only reports its version and architectures. Returns nvcc."""
    return fake_toolkit(tmp_path, monkeypatch, "13.0")


def fake_toolkit(folder: Path, monkeypatch: pytest.MonkeyPatch, release: str) -> Path:
    nvcc = folder / "cuda" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text(FAKE_NVCC.format(release=release, known=KNOWN))
    nvcc.chmod(0o755)
    (folder / "cuda" / "lib64").mkdir()
    for name in ("libcudart.so", "libcudart_static.a"):
        (folder / "cuda" / "lib64" / name).touch()
    monkeypatch.setenv("CUDA_HOME", str(folder / "cuda"))
    return nvcc


def archs(found: cuda.Toolkit | cuda.Missing) -> tuple[str, ...]:
    assert isinstance(found, cuda.Toolkit)
    return found.archs


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("9.0", ("9.0",)),
        ("8.0;9.0+PTX", ("8.0", "9.0+PTX")),
        ("8.6 9.0a,9.0a", ("8.6", "9.0a")),
        ("Hopper", ("9.0+PTX",)),
        ("Ampere;9.0", ("8.0", "8.6+PTX", "9.0")),
    ],
)
def test_arch_list_is_honoured(
    toolkit: Path, monkeypatch: pytest.MonkeyPatch, asked: str, expected: tuple[str, ...]
) -> None:
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", asked)
    assert archs(cuda.find(TORCH)) == expected


def test_gencode() -> None:
    kit = cuda.Toolkit(Path("nvcc"), "13.0", ("9.0a", "12.0+PTX"))
    assert kit.gencode() == [
        "-gencode=arch=compute_90a,code=sm_90a",
        "-gencode=arch=compute_120,code=sm_120",
        "-gencode=arch=compute_120,code=compute_120",
    ]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("elementwise/scale.cu", "75 80 90a 120 120+PTX"),
        ("recurrent/instances/step.cu", "75 80 90a 120 120+PTX"),
        ("recurrent/instances/block_and_fma.cu", "80 90a 120 120+PTX"),
        ("recurrent/instances/cluster_dense.cu", "90a"),
        ("recurrent/instances/grid_half.cu", "90a"),
        ("recurrent/instances/grid_half_sm80.cu", "80 120 120+PTX"),
        ("recurrent/formula/instances.cu", "120"),
    ],
)
def test_sources_are_compiled_for_gpus_that_run_their_kernels(source: str, expected: str) -> None:
    kit = cuda.Toolkit(Path("nvcc"), "13.0", ("7.5", "8.0", "9.0", "12.0+PTX"))
    flags = " ".join(kit.gencode(Path("kernels") / source))
    found = re.findall(r"code=(sm|compute)_(\w+)", flags)
    assert " ".join(f"{n}{'+PTX' * (kind == 'compute')}" for kind, n in found) == expected


def test_a_source_for_no_gpu_of_the_build_has_host_code() -> None:
    kit = cuda.Toolkit(Path("nvcc"), "13.0", ("7.5", "8.0+PTX"))
    found = kit.gencode(Path("kernels/recurrent/formula/instances.cu"))
    assert found == ["-gencode=arch=compute_80,code=sm_80"]


@pytest.mark.parametrize(
    ("archs", "left_out"),
    [
        ("7.5", "block_and_fma.cu cluster_dense.cu grid_half.cu grid_half_sm80.cu"),
        ("8.9", "cluster_dense.cu grid_half.cu"),
        ("7.5 9.0", "grid_half_sm80.cu"),
        ("8.0 9.0", ""),
        ("10.0+PTX", "grid_half.cu"),
    ],
)
def test_sources_of_kernels_for_other_gpus_are_left_out(archs: str, left_out: str) -> None:
    kit = cuda.Toolkit(Path("nvcc"), "13.0", tuple(archs.split()))
    instances = Path("kernels/recurrent/instances")
    names = "block_and_fma cluster_dense grid_half grid_half_sm80 launch step".split()
    sources = [instances / f"{name}.cu" for name in names]
    assert " ".join(source.name for source in sources if not kit.needs(source)) == left_out
    assert kit.needs(Path("kernels/recurrent/formula/instances.cu"))


@pytest.mark.parametrize("asked", ["5.0", "nonsense", "9"])
def test_an_arch_that_nvcc_lacks(
    toolkit: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", asked)
    with pytest.raises(host.BuildError, match=f"names '{asked}'.*it knows 8.0, 8.6, 9.0"):
        cuda.find(TORCH)


def test_archs_without_a_gpu_are_torchs_and_newer_by_ptx(toolkit: Path) -> None:
    assert archs(cuda.find(TORCH)) == ("8.0", "9.0+PTX")


def test_archs_of_the_gpus_present(toolkit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [(9, 0), (9, 0), (13, 1)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: gpus[index])
    assert archs(cuda.find(TORCH)) == ("9.0", "12.0+PTX")


def missing(torch_built_with: str | None = "13.0") -> str:
    found = cuda.find(host.Torch("2.11.0", torch_built_with, True, TORCH.root, ()))
    assert isinstance(found, cuda.Missing)
    return f"{found.reason}; {found.remedy}"


def test_why_cuda_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "is built without CUDA; install a torch with CUDA" in missing(None)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nowhere"))
    assert "no nvcc was found" in missing() and "CUDA 13.x toolkit" in missing()
    fake_toolkit(tmp_path, monkeypatch, "12.4")
    assert "is of CUDA 12.4 and torch 2.11.0 is of CUDA 13.0" in missing()
    monkeypatch.setenv("TREADLE_CUDA", "0")
    assert missing() == "TREADLE_CUDA=0 was set; rebuild without TREADLE_CUDA=0"


def test_insisting_on_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_CUDA", "1")
    fake_toolkit(tmp_path, monkeypatch, "12.4")
    with pytest.raises(host.BuildError, match="TREADLE_CUDA=1 asks for CUDA, but .*12.4"):
        cuda.find(TORCH)
    monkeypatch.setenv("TREADLE_CUDA", "yes")
    with pytest.raises(host.BuildError, match="TREADLE_CUDA must be 0, 1, gpu or unset, got 'yes'"):
        cuda.find(TORCH)


def test_cuda_where_there_is_a_gpu(toolkit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_CUDA", "gpu")
    monkeypatch.setattr(cuda, "_has_gpu", lambda: True)
    assert isinstance(cuda.find(TORCH), cuda.Toolkit)
    monkeypatch.setattr(cuda, "_has_gpu", lambda: False)
    assert missing() == "no GPU was found; rebuild with TREADLE_CUDA=1"


def test_a_build_for_checking_says_so(
    toolkit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    found = cuda.find(TORCH)
    facts = {}
    for asked in ("", "1", "max"):
        monkeypatch.setenv("TREADLE_CHECK_BUILD", asked)
        facts[asked] = build._facts(Graph(TORCH, found, tmp_path, "0"), found)
    assert not facts[""]["for_checking"] and "-Ofc" not in facts[""]["nvcc_flags"]
    for asked, level in (("1", "mid"), ("max", "max")):
        assert facts[asked]["for_checking"] and f"-Ofc={level}" in facts[asked]["nvcc_flags"]
    older = cuda.Toolkit(toolkit, "12.8", ("9.0",))  # its nvcc lacks -Ofc
    assert not build._facts(Graph(TORCH, older, tmp_path, "0"), older)["for_checking"]
    monkeypatch.setenv("TREADLE_CHECK_BUILD", "yes")
    with pytest.raises(host.BuildError, match="TREADLE_CHECK_BUILD must be 0, 1, max or unset"):
        cuda.checking_level()


@pytest.mark.parametrize("asked", ["", "1"])
def test_make_builds_cuda_where_there_is_a_gpu_or_where_it_is_told(asked: str) -> None:
    env = {**os.environ, **({"TREADLE_CUDA": asked} if asked else {})}
    rule = "show:\n\t@echo TREADLE_CUDA=$$TREADLE_CUDA\n"
    command = ["make", "-s", "-f", "Makefile", "-f", "-", "show"]
    said = subprocess.run(command, cwd=ROOT, input=rule, env=env, capture_output=True, text=True)
    assert said.stdout == f"TREADLE_CUDA={asked or 'gpu'}\n", said.stderr


def test_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(host, "_free_memory", lambda: 10 << 30)
    assert host.jobs() == 3
    monkeypatch.setattr(host, "_free_memory", lambda: 1 << 30)
    assert host.jobs() == 1
    monkeypatch.setenv("MAX_JOBS", "5")
    assert host.jobs() == 5
    monkeypatch.setenv("MAX_JOBS", "many")
    with pytest.raises(host.BuildError, match="MAX_JOBS must be a positive integer, got 'many'"):
        host.jobs()


def graph_in(tree: Path, kit: cuda.Toolkit | cuda.Missing, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tree)
    return Graph(TORCH, kit, Path("build"), "0").write().read_text()


MISSING = cuda.Missing("the reason", "the remedy")


def sources(text: str, ours: tuple[str, ...]) -> Counter[str]:
    """Counts how often each of our sources is compiled, by itself or in a unit that includes
    several."""
    found: Counter[str] = Counter()
    for name in re.findall(r"^build .*: (?:cxx|nvcc) (\S+)", text, re.M):
        unit = Path(name).is_absolute()
        found.update(re.findall('#include "(.*)"', Path(name).read_text()) if unit else [name])
    return Counter({name: count for name, count in found.items() if name.startswith(ours)})


def test_every_source_is_in_the_graph(monkeypatch: pytest.MonkeyPatch, toolkit: Path) -> None:
    monkeypatch.chdir(ROOT)
    kit = cuda.find(TORCH)
    folder = toolkit.parents[2]
    with_cuda = Graph(TORCH, kit, folder / "a", "0").write().read_text()
    without = Graph(TORCH, MISSING, folder / "b", "0").write().read_text()
    for source in (ROOT / "kernels").rglob("cpu/*.cpp"):
        for isa in host.isas():
            assert f"{source.relative_to(ROOT)}.{isa}.o" in with_cuda
    of_csrc = {str(source.relative_to(ROOT)) for source in (ROOT / "csrc").rglob("*.cpp")}
    of_cuda = {name for name in of_csrc if "/cuda/" in name}
    both = Counter({*of_csrc} - of_cuda - {"csrc/cuda_missing.cpp"})
    both += Counter(str(s.relative_to(ROOT)) for s in (ROOT / "kernels").glob("c_api/*.cpp"))
    of_cuda |= {str(source.relative_to(ROOT)) for source in (ROOT / "kernels").rglob("*.cu")}
    ours = ("csrc/", "kernels/c_api", *of_cuda)
    cells = len(list((ROOT / "kernels/math/cells").glob("*.h")))
    each = Counter({name: cells if "/instances/" in name else 1 for name in of_cuda})
    assert sources(with_cuda, ours) == both + each
    assert sources(without, ours) == both + Counter(["csrc/cuda_missing.cpp"])
    # The precompiled header is made before any unit that uses it.
    own = f"{folder}/a/torch-2.11.0"
    header = f"{own}/precompiled.h"
    begin = with_cuda.index(f"build {own}/csrc/recurrent-run.cpp.o")
    unit = with_cuda[begin:].split("\nbuild ")[0]
    assert f"build {header}.gch: precompile csrc/precompiled.h" in with_cuda
    assert f" | {header}.gch\n" in unit and f"-include {header}" in unit
    assert "cuda_missing" in without and "the reason" in without
    assert "cuda_missing" not in with_cuda and "nvcc" not in without.replace("rule nvcc", "")[:200]


def test_a_wheel_has_a_library_for_torch_without_cuda(
    monkeypatch: pytest.MonkeyPatch, toolkit: Path, tmp_path: Path
) -> None:
    """The library shares csrc/'s objects, except CUDA's, and links no CUDA library of torch."""
    monkeypatch.chdir(ROOT)
    (toolkit.parents[1] / "lib64" / "libcublas.so").touch()
    kit = cuda.find(TORCH)
    graph = Graph(TORCH, kit, tmp_path / "a", "0", also_cpu=True)
    text = graph.write().read_text()
    links = {}
    for library in (graph.library, graph.cpu_library):
        found = re.search(rf"^build {library}: link (.*)\n  flags = (.*)$", text, re.M)
        assert found is not None
        objects, _, kernels = found[1].partition(" | ")
        links[library] = set(objects.split()), set(found[2].split())
        assert kernels == str(graph.kernels)
    (ours, flags), (theirs, without) = links.values()
    of_cuda = {name for name in ours if name.endswith("-cuda.cpp.o")}
    assert theirs - ours == {f"{graph.folder}/csrc/cuda_missing.cpp.o"}
    assert ours - theirs == of_cuda != set()
    assert without < flags and not [flag for flag in without if "cu" in flag.rpartition("/")[2]]
    assert {"-lc10_cuda", "-ltorch_cuda"} < flags - without
    places = build.laid(graph, Path("p"))
    assert places[graph.cpu_library] == Path("p/lib/torch-2.11-cpu/libtreadle.so")
    facts = build._facts(graph, cuda.TORCH_WITHOUT)
    assert (facts["cuda"], facts["cuda_missing"], facts["archs"]) == (None, None, [])
    assert graph.cpu_library not in build.laid(Graph(TORCH, kit, tmp_path / "b", "0"), Path("p"))


def test_kernels_begin_without_torch(
    monkeypatch: pytest.MonkeyPatch, toolkit: Path, tmp_path: Path
) -> None:
    """The commands that compile the kernels without torch are also commands of the whole build,
    which therefore does not run them again."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    without = host.Torch("0.0.0", "13.0", True, Path("no-torch"), ())
    edges = []
    for torch_of, write in ((without, Graph.write_kernels), (TORCH, Graph.write)):
        graph = Graph(torch_of, cuda.find(torch_of), tmp_path / "same", "0")
        edges.append(set(re.findall(r"^build .*\n  flags = .*", write(graph).read_text(), re.M)))
    early, every = edges
    assert early < every
    assert len(early) > len(list((ROOT / "kernels").rglob("*.cu"))) > 10


def test_code_for_an_older_gpu_is_assembled_for_a_newer_one(
    toolkit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests of layers planned for another GPU need this (docs/other_gpus.md)."""
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0")
    assert cuda.find(TORCH).gencode() == ["-gencode=arch=compute_80,code=sm_80"]
    monkeypatch.setenv("TREADLE_ASSEMBLE_FOR", "9.0")
    assert cuda.find(TORCH).gencode() == ["-gencode=arch=compute_80,code=sm_90"]


def test_ccache_is_used_where_it_is_found(
    tmp_path: Path, toolkit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    (tmp_path / "ccache").touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = cuda.find(TORCH)
    for wanted, start in (("", "ccache "), ("0", "")):
        monkeypatch.setenv("TREADLE_CCACHE", wanted)
        text = Graph(TORCH, found, tmp_path / "objects", "0").write().read_text()
        assert f"\ncxx = {start}c" in text and f"\nnvcc = {start}{toolkit}" in text


def test_host_objects_are_shared_with_a_cpu_only_build(
    monkeypatch: pytest.MonkeyPatch, toolkit: Path
) -> None:
    monkeypatch.chdir(ROOT)
    folder = toolkit.parents[2] / "same"
    texts = [
        Graph(TORCH, kit, folder, "0").write().read_text() for kit in (cuda.find(TORCH), MISSING)
    ]
    shared = [
        f"build {folder}/torch-2.11.0/csrc/recurrent-run.cpp.o",
        f"build {folder}/any-torch/kernels/elementwise/cpu/scale.cpp.avx2.o",
    ]
    for start in shared:
        first, second = (text[text.index(start) :].split("\nbuild ")[0] for text in texts)
        assert first == second


def test_objects_without_torch_are_shared_by_its_versions(
    monkeypatch: pytest.MonkeyPatch, toolkit: Path
) -> None:
    monkeypatch.chdir(ROOT)
    folder, kit = toolkit.parents[2], cuda.find(TORCH)
    newer = host.Torch("2.15.0", "13.2", True, TORCH.root, TORCH.arch_list)
    edges = []
    for there in (TORCH, newer):
        text = Graph(there, kit, folder, "0").write().read_text()
        edges.append({e for e in text.split("\nbuild ") if e.startswith(f"{folder}/any-torch/")})
    assert edges[0] == edges[1]
    assert any(".cu.o: nvcc" in e for e in edges[0]) and any(".avx2.o" in e for e in edges[0])
    assert not any("torch/include" in edge for edge in edges[0])


def test_handlers_for_jax_are_built_where_jax_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    for include, wanted in ((None, 0), (tmp_path / "include", 1)):
        monkeypatch.setattr(host, "jax_include", lambda include=include: include)
        graph = Graph(TORCH, MISSING, tmp_path / "build", "0")
        text = graph.write().read_text()
        assert text.count("kernels/jax/handlers.cpp.o: cxx ") == wanted
        assert text.count(f"build {graph.jax_handlers}: link ") == wanted
        laid = build.laid(graph, tmp_path)
        assert all(binary.name == place.name for binary, place in laid.items())
        assert list(laid.values()).count(tmp_path / "lib" / "libtreadle_jax.so") == wanted
    (handlers,) = [edge for edge in text.split("\nbuild ") if "handlers.cpp.o: cxx" in edge]
    assert f"-isystem {tmp_path}/include" in handlers and "torch" not in handlers.split("flags")[1]


def test_a_file_is_compiled_again_only_when_it_or_its_header_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("csrc/include", "kernels/one/cpu"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("a", "b"):
        header = f"kernels/one/cpu/{name}.h"
        (tmp_path / f"kernels/one/cpu/{name}.cpp").write_text(f'#include "{header}"\nint {name};\n')
        (tmp_path / header).touch()
    (tmp_path / "csrc/cuda_missing.cpp").touch()
    graph_in(tmp_path, MISSING, monkeypatch)
    made = "build/any-torch/kernels/one/cpu"
    objects = [f"{made}/{n}.cpp.{isa}.o" for n in "ab" for isa in host.isas()]

    def compiled() -> int:
        command = [host.ninja(), "-f", "build/torch-2.11.0/cpu/build.ninja", *objects]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return said.count("c++ build/")

    every = len(host.isas())
    assert compiled() == 2 * every
    assert compiled() == 0
    (tmp_path / "kernels/one/cpu/a.h").write_text("extern int a;\n")
    assert compiled() == every
    (tmp_path / "kernels/one/cpu/b.cpp").write_text("int b = 1;\n")
    assert compiled() == every
