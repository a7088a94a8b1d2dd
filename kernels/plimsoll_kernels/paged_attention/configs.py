"""Configurations of the two launches of paged attention; None: the default, which fits every device."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll_kernels.tuning.config import LaunchConfig


@dataclass(frozen=True, slots=True)
class PagedConfigs:
    """Configurations found by tuning, for one head shape on one device."""

    decode: LaunchConfig | None = None
    prefill: LaunchConfig | None = None


DEFAULTS = PagedConfigs()
