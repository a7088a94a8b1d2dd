"""The kinds of ops that the kernels walk."""

from __future__ import annotations

from enum import IntEnum


class Kind(IntEnum):
    """PlimsollKind: which record an op is."""

    EMBED = 0
    POSITIONS = 1
    NORM = 2
    PRODUCT = 3
    HEADS = 4
    ATTEND = 5
    ADD = 6
    ROUTE = 7
    EXPERTS = 8
    GATE = 9
    SCALE = 10
    MULTIPLY = 11
    CONVOLVE = 12
    GATED_NORM = 13
    DUAL_SCAN = 14
    DELTA_RULE = 15
    SELECTIVE_SCAN = 16
    GATED_RECURRENCE = 17
    LATENT = 18
    ABSORB = 19
    EXPAND = 20
