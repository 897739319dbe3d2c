"""Resets on a GPU with each algorithm. The cases of persistent_resets.py run in another process,
which is killed if a kernel hangs, as in test_cuda_persistent.py."""

from __future__ import annotations

from tests.recurrent.kernels.test_cuda_persistent import ALL_ALGORITHMS, EACH, watch
from tests.recurrent.support.layer_cases import EACH_CELL
from tests.support.inputs import SM80


@SM80
@EACH
@EACH_CELL
def test_by_the_rule_on_cuda(algorithm: str, dtype: str, cell: str) -> None:
    watch("reset cases", algorithm, dtype, cell)


@SM80
@EACH
@EACH_CELL
def test_bits_and_nan_on_cuda(algorithm: str, dtype: str, cell: str) -> None:
    watch("reset bits", algorithm, dtype, cell)


@SM80
@ALL_ALGORITHMS
def test_a_captured_graph_reads_new_marks_on_cuda(algorithm: str) -> None:
    watch("reset graphs", algorithm)
