"""Our attention behind Transformers' `AttentionInterface`: who is called, with what, and what that means for a cache.

Transformers calls the function that is registered as `NAME` with the attention module itself, so that each model's
modules carry the one whom their calls are for (`connect`); several models in one process do not meet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from plimsoll_runtime.models.spec.attention import AttentionShape
from plimsoll_runtime.models.transformers_code.model_classes import UnservedError

NAME = "plimsoll"
_RECEIVER = "plimsoll_receiver"

_HARMLESS = frozenset(
    {
        "cache_position",
        "cu_seq_lens_k",
        "cu_seq_lens_q",
        "is_causal",
        "layer_idx",
        "logits_to_keep",
        "max_length_k",
        "max_length_q",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "use_cache",
    }
)
"""Arguments that modules pass on and that change no score: positions are in queries and keys already."""


@dataclass(frozen=True, slots=True)
class Call:
    """One layer's attention: query [heads, T, D], key [kv_heads, T, D], value [kv_heads, T, DV].

    `window` is what the module says of a sliding window beside its mask; `mask` is what the model has made of ours.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    window: int | None
    softcap: float | None
    mask: Tensor | None

    @property
    def head_dim(self) -> int:
        """Of the cache, which has one for keys and values: the larger of the two."""
        return max(self.key.shape[-1], self.value.shape[-1])

    def shape(self, window: int | None) -> AttentionShape:
        """What the cache has to be for it."""
        return AttentionShape(
            self.query.shape[0], self.key.shape[0], self.head_dim, self.scale, window=window, softcap=self.softcap
        )

    def rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """Query [T, heads, D], key and value [T, kv_heads, D] as a cache takes them, zeros where one is narrower."""
        query, key, value = (
            pad(t, (0, self.head_dim - t.shape[-1])) if t.shape[-1] < self.head_dim else t
            for t in (self.query, self.key, self.value)
        )
        return tuple(t.transpose(0, 1).contiguous() for t in (query, key, value))  # type: ignore[return-value]


class Receiver(Protocol):
    """Whom a model's attention modules call."""

    def attend(self, call: Call) -> Tensor:
        """One layer's attention -> [T, heads, DV]."""


def connect(model: torch.nn.Module, receiver: Receiver) -> None:
    """From here on the attention modules of a model call this receiver; nobody else's do."""
    register()
    for module in model.modules():
        setattr(module, _RECEIVER, receiver)


def register() -> None:
    """Make our attention known to Transformers."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, _called)


def _called(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **rest: Any,
) -> tuple[Tensor, None]:
    """What Transformers calls: query [1, heads, T, D], key and value [1, kv_heads, T, D] -> [1, T, heads, DV]."""
    window, softcap = rest.pop("sliding_window", None), rest.pop("softcap", None)
    _check(module, query, key, value, rest)
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    call = Call(query[0], key[0], value[0], scale, window, softcap, attention_mask)
    receiver: Receiver = getattr(module, _RECEIVER)
    return receiver.attend(call)[None], None


def _check(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, rest: Mapping[str, Any]) -> None:
    """Raises UnservedError for what a cache of keys and values, and causal attention over it, does not have."""
    if said := sorted(name for name, value in rest.items() if value is not None and name not in _HARMLESS):
        raise UnservedError(f"gives attention what ours does not take ({', '.join(said)})")
    if rest.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        raise UnservedError("attends to later tokens too")
    if query.shape[0] != 1 or not query.shape[2] == key.shape[2] == value.shape[2]:
        raise UnservedError("attends to other rows than the step's own (cross attention, or a cache of its own)")
    if query.shape[1] % key.shape[1] or key.shape[1] != value.shape[1]:
        raise UnservedError(
            f"has {query.shape[1]} heads of queries, {key.shape[1]} of keys and {value.shape[1]} of values"
        )
