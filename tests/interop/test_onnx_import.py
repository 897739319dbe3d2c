"""treadle.onnx is imported only on request; a failed import says what to do."""

from __future__ import annotations

from tests.support import installed


def test_treadle_does_not_import_onnx() -> None:
    code = "import treadle, sys; assert not {'onnx', 'onnxscript', 'torch.onnx'} & {*sys.modules}"
    done = installed.python("-c", code)
    assert done.returncode == 0, done.stderr


def test_without_onnxscript() -> None:
    code = "import sys; sys.modules['onnxscript'] = None; import treadle.onnx"
    done = installed.python("-c", code)
    assert done.returncode == 1
    assert "ImportError: treadle.onnx needs onnxscript: pip install onnxscript" in done.stderr
