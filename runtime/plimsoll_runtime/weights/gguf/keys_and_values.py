"""Keys and values of latent attention, which newer GGUF files have as two tensors and Transformers as one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from plimsoll_runtime.weights.stored import Parts, Scheme


@dataclass(frozen=True, slots=True)
class KeysAndValues:
    """What makes each head's key, then its value, of two matrices of which the first is turned.

    Parts are those of `keys` [heads, rank, plain], whose names begin so, and of `values` [heads, value, rank].
    """

    keys: Scheme
    values: Scheme
    plain: int
    value: int

    def converted(self, parts: Parts, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """See Scheme: [heads x (plain + value), rank]."""
        width = self.plain + self.value
        heads, rank = shape[0] // width, shape[1]
        out = torch.empty(heads, width, rank, dtype=dtype)
        out[:, : self.plain] = self.keys.converted(_of("keys", parts), (heads, rank, self.plain), dtype).mT
        out[:, self.plain :] = self.values.converted(_of("values", parts), (heads, self.value, rank), dtype)
        return out.view(shape)

    def rows(self, parts: Parts, first: int, last: int) -> Parts:
        """See Scheme: of whole heads."""
        width = self.plain + self.value
        if first % width or last % width:
            raise ValueError(f"rows {first} to {last}: a head has {width}")
        first, last = first // width, last // width
        keys, values = (
            scheme.rows(_of(name, parts), first, last)
            for name, scheme in (("keys", self.keys), ("values", self.values))
        )
        return joined(keys, values)

    def columns(self, parts: Parts, first: int, last: int) -> Parts:
        """See Scheme: keys are turned, and are not cut."""
        raise ValueError(f"columns {first} to {last} of keys that lie turned")


def joined(keys: Parts, values: Parts) -> Parts:
    """Parts of both, as KeysAndValues has them."""
    return {
        f"{name}.{part}": tensor for name, own in (("keys", keys), ("values", values)) for part, tensor in own.items()
    }


def _of(name: str, parts: Parts) -> Parts:
    return {part.removeprefix(f"{name}."): tensor for part, tensor in parts.items() if part.startswith(f"{name}.")}
