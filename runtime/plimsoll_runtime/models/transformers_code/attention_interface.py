"""Our attention as an implementation of Transformers' `AttentionInterface`.

Transformers calls the function registered as `NAME` with the attention module. `connect` stores a receiver in each
module of a model, so that several models in one process do not interfere.
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
"""Arguments that modules pass and that do not change scores; queries and keys already contain positions."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of one layer's attention: query [heads, T, D], key [kv_heads, T, D], value [kv_heads, T, DV].

    `window` is the sliding window that the module passes besides its mask. `mask` is the mask that the model passes.
    Models create masks only in the probe (see `probe.watched_masks`); otherwise None is expected.
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
        """The head size of the cache, which keys and values share: the larger of the two."""
        return max(self.key.shape[-1], self.value.shape[-1])

    def shape(self, window: int | None) -> AttentionShape:
        """Return the attention shape of the call, with this window."""
        return AttentionShape(
            self.query.shape[0], self.key.shape[0], self.head_dim, self.scale, window=window, softcap=self.softcap
        )

    def rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return query [T, heads, D], key and value [T, kv_heads, D] for a cache, padded with zeros to equal head
        sizes.
        """
        query, key, value = (
            pad(t, (0, self.head_dim - t.shape[-1])) if t.shape[-1] < self.head_dim else t
            for t in (self.query, self.key, self.value)
        )
        return tuple(t.transpose(0, 1).contiguous() for t in (query, key, value))  # type: ignore[return-value]


class Receiver(Protocol):
    """Receives the attention calls of a model."""

    def attend(self, call: Call) -> Tensor:
        """Compute one layer's attention. Return [T, heads, DV]."""


def connect(model: torch.nn.Module, receiver: Receiver) -> None:
    """Send the attention calls of a model's modules to a receiver."""
    register()
    for module in model.modules():
        setattr(module, _RECEIVER, receiver)


def register() -> None:
    """Register our attention with Transformers."""
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
    """Handle a call by Transformers: query [1, heads, T, D], key and value [1, kv_heads, T, D] -> [1, T, heads, DV]."""
    window, softcap = rest.pop("sliding_window", None), rest.pop("softcap", None)
    _check(module, query, key, value, rest)
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    call = Call(query[0], key[0], value[0], scale, window, softcap, attention_mask)
    receiver: Receiver = getattr(module, _RECEIVER)
    return receiver.attend(call)[None], None


def _check(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, rest: Mapping[str, Any]) -> None:
    """Raise UnservedError for features that causal attention over a KV cache does not have."""
    if said := sorted(name for name, value in rest.items() if value is not None and name not in _HARMLESS):
        raise UnservedError(f"calls attention with unsupported arguments ({', '.join(said)})")
    if rest.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        raise UnservedError("attends to later tokens")
    if query.shape[0] != 1 or not query.shape[2] == key.shape[2] == value.shape[2]:
        raise UnservedError("attends to rows outside the step (cross attention, or its own cache)")
    if query.shape[1] % key.shape[1] or key.shape[1] != value.shape[1]:
        raise UnservedError(
            f"has {query.shape[1]} heads of queries, {key.shape[1]} of keys and {value.shape[1]} of values"
        )
