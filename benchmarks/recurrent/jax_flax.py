"""flax's GRU and LSTM layers with torch's parameters, for jax_calls.py; flax may be missing.

A flax cell has a transposed matrix for each gate, and one bias where torch adds two. flax's GRU
adds this bias to the product with x, except that its gate n has two biases. flax's LSTM adds the
bias to the product with h.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

try:
    import flax
    from flax import linen
except Exception as problem:  # a flax for another version of JAX may raise any error
    linen, VERSION, WHY_NOT = None, None, str(problem)
else:
    VERSION, WHY_NOT = flax.__version__, ""

GATES = {"gru": "rzn", "lstm": "ifgo"}


def layer(cell: str, hidden: int, dtype: Any, x: Any, states: Any, params: Any) -> Any:
    kinds = {"gru": linen.GRUCell, "lstm": linen.OptimizedLSTMCell}
    # With its default initializer, flax would draw orthogonal matrices to find the shapes of the
    # parameters. JAX cannot draw these in half types.
    no_draw = linen.initializers.zeros_init()
    made = kinds[cell](hidden, dtype=dtype, param_dtype=dtype, recurrent_kernel_init=no_draw)
    carry = states[0] if cell == "gru" else states[::-1]
    rnn = linen.RNN(made, time_major=True, return_carry=True)
    end, output = rnn.apply({"params": {"cell": params}}, x, initial_carry=carry)
    return output, *((end,) if cell == "gru" else end[::-1])


def params(cell: str, given: tuple[Any, ...]) -> dict[str, Any]:
    gates = GATES[cell]
    weight_ih, weight_hh, bias_ih, bias_hh = (jnp.split(a, len(gates)) for a in given)
    found: dict[str, Any] = {}
    for k, gate in enumerate(gates):
        found[f"i{gate}"] = {"kernel": weight_ih[k].T}
        found[f"h{gate}"] = {"kernel": weight_hh[k].T}
        if gate == "n":
            found["in"]["bias"], found["hn"]["bias"] = bias_ih[k], bias_hh[k]
        else:
            found[f"{'i' if cell == 'gru' else 'h'}{gate}"]["bias"] = bias_ih[k] + bias_hh[k]
    return found


def restored(cell: str, grads: dict[str, Any]) -> tuple[Any, ...]:
    """Gradients of weight_ih, weight_hh, bias_ih and bias_hh. If the cell has only the sum of two
    biases, both get its gradient."""
    gates, one = GATES[cell], "i" if cell == "gru" else "h"
    kernels = (jnp.concatenate([grads[f"{of}{g}"]["kernel"].T for g in gates]) for of in "ih")
    biases = (
        jnp.concatenate([grads[f"{of if g == 'n' else one}{g}"]["bias"] for g in gates])
        for of in "ih"
    )
    return *kernels, *biases
