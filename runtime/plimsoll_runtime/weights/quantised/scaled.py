"""Numbers of eight bits, each of which is to be multiplied by a scale that it shares with others of its row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from plimsoll_runtime.weights.pieces import in_pieces
from plimsoll_runtime.weights.stored import Parts


@dataclass(frozen=True, slots=True)
class Scaled:
    """Parts "values" [..., rows, columns] and "scales" float32 [..., rows, runs]: one for `run` columns each."""

    run: int

    def converted(self, parts: Parts, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """See Scheme: multiplied in float32, piece by piece."""
        values, scales = parts["values"].flatten(0, -2), parts["scales"].flatten(0, -2)
        return in_pieces(shape, dtype, lambda first, last: self._multiplied(values[first:last], scales[first:last]))

    def rows(self, parts: Parts, first: int, last: int) -> Parts:
        """See Scheme."""
        return {name: part[first:last] for name, part in parts.items()}

    def columns(self, parts: Parts, first: int, last: int) -> Parts:
        """See Scheme: runs are not cut, but for the last one."""
        end = parts["values"].shape[-1]
        if first % self.run or (last % self.run and last != end):
            raise ValueError(f"columns {first} to {last}: there is a scale for {self.run} columns")
        return {
            "values": parts["values"][..., first:last],
            "scales": parts["scales"][..., first // self.run : -(-last // self.run)],
        }

    def _multiplied(self, values: Tensor, scales: Tensor) -> Tensor:
        found = values.float()
        whole = found.shape[1] // self.run
        if whole:
            found[:, : whole * self.run].view(len(found), whole, self.run).mul_(scales[:, :whole, None])
        if whole < scales.shape[1]:
            found[:, whole * self.run :].mul_(scales[:, whole:])
        return found
