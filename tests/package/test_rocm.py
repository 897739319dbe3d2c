"""Tests support for AMD GPUs without an AMD GPU: torch's hipify translates the sources, a page
lists what hipify leaves untranslated, and the planner chooses no sm_90 kernel for these GPUs."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from torch.utils.hipify import hipify_python

from tests.recurrent.plan.test_plan import BINDINGS, plan
from tools.check_kernels import strip_comments

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "many_gpus.md"
FOLDERS = ("kernels", "csrc")
SUFFIXES = (".cu", ".cuh", ".h", ".cpp")
# Names from CUDA's runtime, driver and libraries, and names that nvcc defines. hipify keeps the
# namespaces c10::cuda and at::cuda, because torch also has them on AMD GPUs.
CUDA_NAME = re.compile(r"\b(?:cuda[A-Z]\w*|cu[A-Z]\w+|CU_\w+|CUtensor\w*|cublas\w*|__nv_\w+)\b")
CUDA_HEADER = re.compile(r"#\s*include\s*<(cu\w*[/.][\w./]+|cooperative_groups\S*|nv\w*\.h)>")
# Code for sm_90 only: TMA, wgmma, clusters, mbarriers, blocks that wait for each other.
SM_90 = {
    *(f"kernels/common/{name}.cuh" for name in ("ptx", "tma", "wgmma", "wgmma_groups")),
    *(f"kernels/recurrent/{name}.cuh" for name in ("cluster/call", "grid/grid", "tiles/forward")),
    *(f"kernels/recurrent/{name}.cuh" for name in ("engine/persistent", "tiles/tiles")),
    *(f"kernels/sine_linear/fused_{name}.cu" for name in ("forward", "backward", "jet")),
    "kernels/sine_linear/fused_backward_gemm.cuh",
}
PERSISTENT = re.compile(
    r"kernels/(recurrent/(cluster|grid|block|engine|tiles|scan)/\w*\.cuh"
    r"|recurrent/launch(ers)?\.cuh?|common/wgmma\w*\.cuh|sine_linear/(fused|mma)_\w+\.cuh?)"
)
# Every launch needs these, and hipify does not translate them: AMD GPUs need their own code.
LAUNCH = {
    "cudaLaunchAttribute",
    "cudaLaunchAttributeClusterDimension",
    "cudaLaunchAttributeCooperative",
    "cudaLaunchAttributeProgrammaticStreamSerialization",
    "cudaLaunchConfig_t",
    "cudaLaunchKernelEx",
}
# Names with which driver functions are looked up.
DRIVER = {
    "cudaDriverEntryPointQueryResult",
    "cudaDriverEntryPointSuccess",
    "cudaEnableDefault",
    "cudaGetDriverEntryPoint",
    "cudaGetDriverEntryPointByVersion",
}
BY_HAND = {
    "kernels/common/launch.cuh": LAUNCH,
    "kernels/common/launch_observer.cu": {"cudaFuncGetName"},
    "kernels/common/driver.h": DRIVER,
    "kernels/recurrent/formula/kernels.cu": {
        "cudaKernel_t",
        "cudaLibraryGetKernel",
        "cudaLibraryLoadData",
        "cudaLibrary_t",
    },
    "csrc/common/cuda/gemm.cpp": {"cublasMath_t"},
    "kernels/c_api/cuda.cpp": {"cudaStreamGetDevice", "cudaStreamLegacy", "cudaStreamPerThread"},
}
# Files with PTX for all GPUs, next to a version for the host. hipify does not change PTX.
PTX = {
    *(f"kernels/math/{name}.h" for name in ("activations", "exact", "exp")),
    *("kernels/common/launch.cuh", "kernels/common/fast_math_check.cu"),
    "kernels/elementwise/trig.cuh",
    "kernels/recurrent/formula/functors.h",
}
# Files that test __CUDA_ARCH__, which clang does not define for AMD GPUs: it would compile the
# host's branch.
MATH = (
    "activations",
    "bits",
    "exact",
    "exp",
    "sine_double",
    "sine_float",
    "sine_jet",
    "sine_tables",
)
NVCC = {
    *(f"kernels/math/{name}.h" for name in MATH),
    *(f"kernels/elementwise/{name}.cuh" for name in ("dense_map", "trig")),
    "kernels/common/launch.cuh",
    "kernels/elementwise/snake.cu",
    "kernels/math/exp_any.h",
    "kernels/recurrent/formula/functors.h",
    "kernels/recurrent/formula/instances.cu",
}


@pytest.fixture(scope="module")
def translated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The text of each source after hipify, by path, without comments."""
    copy = tmp_path_factory.mktemp("hip")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder)
    sources = [path for path in copy.rglob("*") if path.suffix in SUFFIXES]
    with contextlib.redirect_stdout(io.StringIO()):
        found = hipify_python.hipify(
            project_directory=str(copy),
            output_directory=str(copy),
            header_include_dirs=(str(copy), str(copy / "csrc")),
            extensions=SUFFIXES,
            is_pytorch_extension=True,
        )
    texts = {}
    for source in sources:
        result = found[str(source)]
        # hipify skips headers that it has already translated for an earlier file.
        done = ("[ok]", "[skipped, no changes]", "[skipped, already hipified]")
        assert result.status in done, (source, result.status)
        texts[source.relative_to(copy).as_posix()] = strip_comments(
            Path(result.hipified_path or source).read_text()
        )
    return texts


def named(translated: dict[str, str], pattern: re.Pattern[str]) -> dict[str, set[str]]:
    found = {path: set(pattern.findall(text)) for path, text in translated.items()}
    return {path: names for path, names in found.items() if names}


def test_hipify_leaves_what_is_listed(translated: dict[str, str]) -> None:
    assert len(translated) > 200
    assert sum("hipStream_t" in text for text in translated.values()) > 20
    assert not named(translated, CUDA_HEADER).keys() - {"kernels/common/tma.cuh"}
    left = named(translated, CUDA_NAME)
    assert {path: names for path, names in left.items() if path not in SM_90} == BY_HAND
    # No list has an unneeded entry.
    ptx = named(translated, re.compile(r"\basm\b"))
    assert ptx.keys() - SM_90 == PTX
    needed = re.compile(r"\bCUDA_ARCH_FEAT_SM90_ALL\b|__CUDA_ARCH_FEAT_SM90_ALL")
    assert SM_90 <= left.keys() | ptx.keys() | named(translated, needed).keys()
    arch = named(translated, re.compile(r"\b__CUDA_ARCH__\b")).keys() - SM_90
    assert {path for path in arch if not PERSISTENT.fullmatch(path)} == NVCC


def test_code_of_sm_90_stays_behind_its_planner(translated: dict[str, str]) -> None:
    """Only such kernels and their launchers include code that hipify cannot translate."""
    users = {
        path
        for path in translated
        if any(f'"{header}"' in (ROOT / path).read_text() for header in SM_90)
    }
    of_layers = {path for path in users if re.match(r"kernels/recurrent/instances/", path)}
    assert not [path for path in users - of_layers if not PERSISTENT.fullmatch(path)]
    assert not [path for path in of_layers if "step" in path or "warp" in path]


def architectures(folder: Path, versions: Iterable[tuple[int, int]], *flags: str) -> list[int]:
    """The architectures that `architecture_of`, compiled with `flags`, returns for these
    versions."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    calls = ", ".join(f"treadle::architecture_of({major}, {minor})" for major, minor in versions)
    program = (
        '#include <cstdio>\n#include <initializer_list>\n#include "kernels/common/architecture.h"\n'
        f'int main() {{ for (int one : {{{calls}}}) std::printf("%d ", one); }}\n'
    )
    command = [compiler, "-std=c++17", f"-I{ROOT}", *flags, "-x", "c++", "-", "-o"]
    subprocess.run([*command, str(folder / "a.out")], input=program, text=True, check=True)
    done = subprocess.run([str(folder / "a.out")], capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


# The versions that HIP reports: gfx90a (MI200), gfx942 (MI300), gfx1100, gfx1201.
AMD = ((9, 0), (9, 4), (11, 0), (12, 0))


@BINDINGS
def test_amd_gpus_get_a_kernel_a_step(tmp_path: Path) -> None:
    """AMD GPUs run a kernel per step, like NVIDIA GPUs before sm_80, although gfx90a reports the
    same version as an H200."""
    assert architectures(tmp_path, AMD) == [90, 94, 110, 120]
    architecture = 0
    assert architectures(tmp_path, AMD, "-D__HIP_PLATFORM_AMD__") == [architecture] * len(AMD)
    everything = itertools.product((1, 2, 512), (1, 16, 8000), (64, 512, 2048), (2, 4, 8))
    for sizes in everything:
        for backward, cell in itertools.product(
            (False, True), ("lltm", "lstm", "gru", "rnn_tanh", "rnn_relu")
        ):
            options: dict[str, Any] = {"backward": backward, "cell": cell}
            one = plan(sizes, architecture=architecture, **options)
            assert one.algorithm in ("step", "warp")
            assert one.algorithm == plan(sizes, architecture=75, **options).algorithm
    assert plan((512, 16, 512, 2)).algorithm == "cluster"
    with pytest.raises(
        RuntimeError, match="needs float16 or bfloat16, .* an sm_80 GPU or a later one, got"
    ):
        plan((512, 16, 512, 2), forced="cluster", architecture=architecture)


@pytest.mark.parametrize(
    "file", ["kernels/recurrent/plan/device.cu", "csrc/sine_linear/cuda/sine_linear.cpp"]
)
def test_every_chooser_asks_for_the_architecture(file: str) -> None:
    text = strip_comments((ROOT / file).read_text())
    assert "architecture_of(" in text
    assert not re.search(r"major\s*(?:\*|==)", text)


def test_the_page_names_what_is_missing() -> None:
    page = PAGE.read_text()
    wanted = {Path(path).name for path in {*BY_HAND, *PTX, *NVCC}}
    assert not [name for name in sorted(wanted) if name not in page]
    assert "No AMD GPU has run treadle" in page
