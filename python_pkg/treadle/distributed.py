"""treadle's layers over many processes: an extension of torch.distributed.tensor.parallel.

DTensors work without this module: the ops accept them.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
    parallel,
)

from .nn import SineLinear

__all__ = ["ColwiseParallel"]


class ColwiseParallel(parallel.ColwiseParallel):
    """torch's ``ColwiseParallel``, which here also accepts :class:`treadle.nn.SineLinear`.

    Each process has some rows of the weight and of the bias, and computes the corresponding
    features of the output. No sum over processes is needed. ``RowwiseParallel`` does not support
    sine layers, because it would have to sum over processes before the sine.

    Args:
        input_layouts, output_layouts, use_local_output: as in torch. By default, the input is the
            same in every process, and the output is a plain tensor with this process's features.

    Example::

        parallelize_module(
            siren.net, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()}  # sine, then linear
        )
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not isinstance(module, SineLinear):
            return super()._apply(module, device_mesh)
        # distribute_module passes the results of these functions on, although its annotations say
        # that they return None.
        take: Any = self._take_input
        give: Any = self._give_output
        return distribute_module(module, device_mesh, self._cut_parameters, take, give)

    def _cut_parameters(self, name: str, module: nn.Module, mesh: DeviceMesh) -> None:
        for own, parameter in list(module.named_parameters(recurse=False)):
            cut = distribute_tensor(parameter, mesh, [Shard(0)], src_data_rank=self.src_data_rank)
            module.register_parameter(own, nn.Parameter(cut, requires_grad=parameter.requires_grad))

    def _take_input(self, module: nn.Module, inputs: Any, mesh: DeviceMesh) -> DTensor:
        x = inputs[0]
        if not isinstance(x, DTensor):
            x = DTensor.from_local(x, mesh, self.input_layouts, run_check=False)
        return x.redistribute(placements=[Replicate()])

    def _give_output(self, module: nn.Module, output: DTensor, mesh: DeviceMesh) -> Tensor:
        output = output.redistribute(placements=self.output_layouts)
        return output.to_local() if self.use_local_output else output
