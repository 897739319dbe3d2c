"""Texts that tools/new_op.py adds to existing files, and the text that it prints at the end.

@NAME@ is the op's name, and @CAMEL@ is the same in camel case for C++ types.
"""

from __future__ import annotations

# For each file to change: a pattern that matches one line, the lines to add, and whether they go
# before that line (True) or after it (False).
CHANGED: dict[str, list[tuple[str, str, bool]]] = {
    "csrc/schemas.h": [
        (
            r'^    "lltm_cell\(',
            """\
    "@NAME@(Tensor x) -> Tensor",
    "@NAME@.out(Tensor x, *, Tensor(a!) out) -> ()",
    "@NAME@_(Tensor(a!) x) -> ()",
    "@NAME@_backward(Tensor grad, Tensor x) -> Tensor",

""",
            True,
        )
    ],
    "kernels/elementwise/unary_ops.h": [
        (r"^  row\(cosine, Cosine, false\)$", "  row(@NAME@, @CAMEL@, false) \\\n", True)
    ],
    "kernels/elementwise/unary.cu": [
        (r'^#include "kernels/elementwise/trig\.cuh"$', '#include "kernels/math/@NAME@.h"\n', False)
    ],
    "kernels/elementwise/cpu/unary.cpp": [
        (
            r'^#include "kernels/elementwise/cpu/sine\.h"$',
            '#include "kernels/math/@NAME@.h"\n',
            False,
        )
    ],
    "csrc/elementwise/unary.cpp": [
        (
            r"^// ---- C\+\+ interface and registration$",
            """\
Tensor @CAMEL@Op::times_second(const Tensor& t, const Tensor& x) {
  return t * x;  // TODO: t * f''(x)
}

""",
            True,
        )
    ],
    "csrc/include/treadle/ops.h": [
        (
            r"^// One step of the LLTM cell",
            """\
// TODO: f(x). x [*] of any number dtype.
at::Tensor @NAME@(const at::Tensor& x);
at::Tensor& @NAME@_out(at::Tensor& out, const at::Tensor& x);
at::Tensor& @NAME@_(at::Tensor& x);

// grad * f'(x), the derivative of @NAME@. grad and x [*] of one floating-point dtype.
at::Tensor @NAME@_backward(const at::Tensor& grad, const at::Tensor& x);

""",
            True,
        )
    ],
    "python_pkg/treadle/reference/__init__.py": [
        (
            r"^def sine_linear\(",
            '''\
def @NAME@(x: Tensor) -> Tensor:
    """``f(x)``. TODO: say what f is.

    Args:
        x: [...].

    Returns:
        [...].
    """
    raise NotImplementedError("@NAME@: write f(x) in treadle.reference")


def @NAME@_backward(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of :func:`@NAME@` with respect to ``x``: ``grad * f'(x)``.

    Args:
        grad: [...], the gradient of the result of ``@NAME@(x)``.
        x: [...], the argument of ``@NAME@``.

    Returns:
        [...].
    """
    raise NotImplementedError("@NAME@_backward: write grad * f'(x) in treadle.reference")


''',
            True,
        )
    ],
    "python_pkg/treadle/__init__.py": [
        (
            r"^from \.launches import .*$",
            "from .@NAME@ import @NAME@, @NAME@_  # noqa: E402\n",
            False,
        )
    ],
    "tests/elementwise/cases.py": [
        (
            r'^        \*op_of_one_tensor\("cosine".*$',
            '        *op_of_one_tensor("@NAME@", FLOATING),\n',
            False,
        )
    ],
    "README.md": [
        (
            r"^\| `cosine`, `cosine_` \|.*$",
            "| `@NAME@`, `@NAME@_` | TODO | ✓ | ✓ | ✓ | as torch's |\n",
            False,
        )
    ],
    "CHANGELOG.md": [
        (
            r"^  and CUDA except in float64\.$",
            "- `@NAME@`, TODO: what it computes.\n",
            False,
        )
    ],
}

# Names that go into the sorted __all__ of a module.
LISTED = {
    "python_pkg/treadle/reference/__init__.py": "@NAME@ @NAME@_backward",
}

# Lines to append to a file.
APPENDED = {
    "python_pkg/treadle/__init__.py": '__all__ += ["@NAME@", "@NAME@_"]\n',
}

NEXT = """
Next, for @NAME@ (docs/write_an_op.md explains each step):
  1. python_pkg/treadle/reference/     f(x) and grad * f'(x) in plain PyTorch
  2. make test ARGS="-k @NAME@"        its tests fail: the kernels have no formula yet
  3. kernels/math/@NAME@.h             f(x) and grad * f'(x)
  4. csrc/elementwise/unary.cpp        t * f''(x), of ops of torch or of ours
  5. kernels/elementwise/unary_ops.h   true if the op returns integers for integers
     tests/elementwise/cases.py        + INTEGERS in that case; torch's function, if any
  6. make format lint test             its tests pass; then every TODO: grep -rn TODO
"""
