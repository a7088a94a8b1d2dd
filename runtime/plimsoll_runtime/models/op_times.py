"""The ops of a forward pass by kind, and how a decoder tells how long each took.

Every decoder uses the same kinds, whether it runs op by op or everything in one call of native code. An op lasts until
the next begins, so what lies between two of them (a residual, an activation, a view) belongs to the one before.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol, runtime_checkable


class OpKind(StrEnum):
    """What a decoder does, in the order of a layer.

    - embed: token rows, their scale, and what depends on positions alone
    - norm: all norms over hidden states, and in torch the residual sum before them
    - rope: norms over heads and the rotation
    - attention: keys and values into the cache (native code may count the writing as rope), and all of attending
    - output, down: the product and its residual
    - gate_up: the product, the activation and the multiplication
    - state: convolutions and recurrences over a sequence's own state, and what gates them
    - route, experts: which experts a token goes to, and all that they do; of mixtures alone
    - head: the logits; timed by the runner, for a decoder computes them in a call of its own
    """

    EMBED = "embed"
    NORM = "norm"
    QKV = "qkv"
    ROPE = "rope"
    ATTENTION = "attention"
    STATE = "state"
    OUTPUT = "output"
    ROUTE = "route"
    EXPERTS = "experts"
    GATE_UP = "gate_up"
    DOWN = "down"
    HEAD = "head"


@runtime_checkable
class TimesOps(Protocol):
    """A decoder that times its ops: always, where that is nearly free, else because it was wrapped to do so."""

    def take_seconds(self) -> Mapping[str, float]:
        """Seconds by kind of op since the last call."""
