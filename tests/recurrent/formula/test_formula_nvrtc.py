"""NVRTC compiles the kernels of a formula for every GPU since Ampere, with only the files that
torch's packages contain. This test needs no GPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.recurrent.formula import cells
from treadle._formula import disk, nvrtc
from treadle._formula.cell import _sources

CELL = "treadle::math::FormulaRecurrence<float, 2, 2, 2, 1, {half}>"
FLOAT, HALF = CELL.format(half="false"), CELL.format(half="true")
KERNELS = {
    "recurrence_forward": f"{FLOAT}, float, 1",
    "recurrence_backward": f"{FLOAT}, treadle::BFloat16, 1",
    "recurrence_c_states": f"{FLOAT}, float, true",
    "block_forward": f"{HALF}, treadle::BFloat16, 64, false",
    "block_backward": f"{FLOAT}, float, 64, true",
}
# The largest image of these tests has about half of this size. With one variable for each constant
# of each layout that the planner knows, images had 2 MB.
MOST_BYTES = 200_000
SLSTM = "treadle::math::FormulaRecurrence<float, 4, 4, 4, 3, false>"
SEVERAL_STATES = {
    "recurrence_forward": f"{SLSTM}, float, 4",
    "recurrence_backward": f"{SLSTM}, treadle::Half, 2",
    "recurrence_c_states_in_turn": f"{SLSTM}, float, true, 1, 16",
    "block_forward": f"{SLSTM}, float, 64, true",
    "block_backward": f"{SLSTM}, treadle::BFloat16, 64, true",
    "cluster_dense_forward": f"{SLSTM}, treadle::BFloat16, 64, 4, 2, 8, true",
    "cluster_dense_backward": f"{SLSTM}, treadle::BFloat16, 16, 8, 1, 8, true",
    "grid_forward": f"{SLSTM}, treadle::Half, treadle::GridForward<4, 4, 512, true, 3>, true, 0",
    "grid_backward": f"{SLSTM}, treadle::Half, treadle::GridBackward<4, 4, 512, true, 3>, true, 0",
    "grid_split_forward": f"{SLSTM}, treadle::GridSplit<4, 4, 512, 2, true, 3>, true, false",
    "grid_split_backward": (
        f"{SLSTM}, treadle::GridSplitBackward<4, 4, 512, 2, true, 3>, true, false"
    ),
}


@pytest.fixture
def only_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives a test an empty folder of compiled cells, and no CUDA files but those of torch's
    packages."""
    everywhere = nvrtc._toolkit_folders()
    packages = [path for path in everywhere if path.parent.name == "nvidia"]
    if not any(path.glob("lib/libnvrtc.so*") for path in packages):
        pytest.skip("this torch does not include NVRTC")
    if not any((path / "include" / "cuda_fp16.h").is_file() for path in packages):
        pytest.skip("this torch's packages have no CUDA headers")
    monkeypatch.setattr(nvrtc, "_toolkit_folders", lambda: packages)
    monkeypatch.setenv("TREADLE_CELLS", str(tmp_path))


@pytest.mark.parametrize("architecture", [80, 86, 89, 90, 100, 120])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_compiles(
    kernel: str, architecture: int, only_packages: None, capfd: pytest.CaptureFixture[str]
) -> None:
    expression = f"treadle::{kernel}<{KERNELS[kernel]}>"
    functors = _sources[cells.LIGRU.key].functors
    given = functors, "ligru", kernel, expression, architecture
    image, symbol = nvrtc.compiled(*given)
    assert image.startswith(b"\x7fELF") and kernel.encode() in symbol
    assert len(image) < MOST_BYTES
    said = capfd.readouterr().err
    assert re.fullmatch(rf"treadle: compiled {kernel} of ligru in \d+\.\d s\n", said), said
    assert nvrtc.compiled(*given) == (image, symbol)  # read from disk
    assert not capfd.readouterr().err


@pytest.mark.parametrize("kernel", SEVERAL_STATES)
def test_a_cell_with_several_states(kernel: str, only_packages: None) -> None:
    expression = f"treadle::{kernel}<{SEVERAL_STATES[kernel]}>"
    functors = _sources[cells.SLSTM.key].functors
    image, _ = nvrtc.compiled(functors, "slstm", kernel, expression, 90)
    assert image.startswith(b"\x7fELF") and len(image) < MOST_BYTES


def test_a_kernel_that_is_planned_for_another_gpu(
    only_packages: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With TREADLE_IMPOSED_GPU, the kernel is PTX for compute_80, whatever GPU runs it."""
    monkeypatch.setenv("TREADLE_IMPOSED_GPU", "A100")
    expression = f"treadle::block_forward<{KERNELS['block_forward']}>"
    functors = _sources[cells.LIGRU.key].functors
    image, symbol = nvrtc.compiled(functors, "ligru", "block_forward", expression, 90)
    assert b".target sm_80\n" in image and symbol in image
    assert image.endswith(b"\0")  # the driver expects PTX to end with a zero byte


def test_an_error_of_the_compiler_is_shown(only_packages: None) -> None:
    functors = _sources[cells.LIGRU.key].functors.replace("op::mul", "op::no_such_function", 1)
    expression = f"treadle::recurrence_forward<{KERNELS['recurrence_forward']}>"
    with pytest.raises(RuntimeError, match="no_such_function"):
        nvrtc.compiled(functors, "broken", "recurrence_forward", expression, 90)
    assert not list(disk.cells_folder().iterdir())
