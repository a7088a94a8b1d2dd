"""The head of pooling models: projects and normalises pooled vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from plimsoll_kernels.activation.reference import ACTIVATIONS
from plimsoll_runtime.models.ops.cost import FLOAT32, OpCost, OpKind, StepRows, product_cost, total
from plimsoll_runtime.models.ops.norm import Normalise
from plimsoll_runtime.models.ops.weight import Weight, Weights
from plimsoll_runtime.models.spec.pooling import HeadActivation

Part = Callable[[Tensor], Tensor]


def _activation(name: HeadActivation | None) -> Part | None:
    if name is None:
        return None
    return torch.tanh if name == "tanh" else ACTIVATIONS[name]


@dataclass(frozen=True, slots=True)
class Project:
    """y = activation(x W^T + b), in float32. `parts`: W, or a vector for each of its rows."""

    parts: tuple[Weight, ...]
    bias: Weight | None = None
    activation: HeadActivation | None = None

    @property
    def inputs(self) -> int:
        """Columns of x."""
        return self.parts[0].shape[-1]

    @property
    def outputs(self) -> int:
        """Columns of y."""
        return sum(1 if part.is_vector else part.shape[0] for part in self.parts)

    def weights(self) -> tuple[Weight, ...]:
        """Return the tensors that it reads."""
        return self.parts if self.bias is None else (*self.parts, self.bias)

    def compiled(self, weights: Weights) -> Part:
        """Read the weights and return the torch function."""
        matrix = torch.cat([weights.read(part).view(-1, self.inputs) for part in self.parts])
        bias = None if self.bias is None else weights.read(self.bias)
        activation = _activation(self.activation)

        def run(x: Tensor) -> Tensor:
            y = functional.linear(x, matrix, bias)
            return y if activation is None else activation(y)

        return run


@dataclass(frozen=True, slots=True)
class PooledHead:
    """Maps pooled vectors [R, hidden] to float32 [R, outputs] by `parts`; `normalised`: scales results to length 1."""

    hidden: int
    parts: tuple[Project | Normalise, ...] = ()
    normalised: bool = False
    kind: OpKind = OpKind.HEAD

    @property
    def outputs(self) -> int:
        """Columns of the result."""
        return next((part.outputs for part in reversed(self.parts) if isinstance(part, Project)), self.hidden)

    def weights(self) -> tuple[Weight, ...]:
        """Return the tensors that it reads."""
        return tuple(weight for part in self.parts for weight in part.weights())

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """Return the cost, zero if no prompt ends in the step."""
        if not rows.logits:
            return OpCost()
        products = [part for part in self.parts if isinstance(part, Project)]
        return total(
            product_cost(rows.logits, each.inputs, each.outputs, FLOAT32, biased=each.bias is not None)
            for each in products
        )

    def compiled(self, weights: Weights) -> Part:
        """Read the weights and return the torch function."""
        parts = [
            part.compiled(weights) if isinstance(part, Project) else part.loaded(weights).__call__
            for part in self.parts
        ]

        def run(pooled: Tensor) -> Tensor:
            x = pooled.float()
            for part in parts:
                x = part(x)
            return functional.normalize(x, dim=-1) if self.normalised else x

        return run

    def row_bytes(self) -> int:
        """Return the peak bytes per row in torch: four float32 vectors as wide as the widest part."""
        widest = max([self.hidden, *(part.outputs for part in self.parts if isinstance(part, Project))])
        return 4 * widest * FLOAT32
