"""Products that keep a row's shape and nothing of its price, for a model that is asked how it behaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode


class CheapProducts(TorchFunctionMode):
    """Within, a product of rows and a weight is some of the row's own numbers, mixed: every row by itself, as in the
    real one, and without reading all of the weight. `widest`: elements a row of the largest result that has all rows.
    """

    def __init__(self, rows: int) -> None:
        super().__init__()
        self._rows = rows
        self.widest = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """See torch.overrides."""
        found = product(*args, **(kwargs or {})) if func is linear else func(*args, **(kwargs or {}))
        if isinstance(found, Tensor) and self._rows in found.shape:
            self.widest = max(self.widest, found.numel() // self._rows)
        return found


def product(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002
    """In the place of torch's `linear`: input [..., columns], weight [rows, columns], bias [rows] -> [..., rows]."""
    columns = torch.arange(weight.shape[0]) % input.shape[-1]
    found = input[..., columns] * (1 + weight[:, 0]) + input.mean(-1, keepdim=True)
    return found if bias is None else found + bias
