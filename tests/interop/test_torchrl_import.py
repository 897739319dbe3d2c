"""treadle.torchrl is imported only on request; a failed import says what to do."""

from __future__ import annotations

import re

import pytest

from tests.support import installed


def test_treadle_does_not_import_torchrl() -> None:
    done = installed.python("-c", "import treadle, sys; assert 'tensordict' not in sys.modules")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("missing", ["torchrl", "tensordict"])
def test_without_torchrl(missing: str) -> None:
    code = f"import sys; sys.modules['{missing}'] = None; import treadle.torchrl"
    done = installed.python("-c", code)
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert re.fullmatch(
        "ImportError: treadle.torchrl needs (torchrl|tensordict): pip install torchrl", said
    )
