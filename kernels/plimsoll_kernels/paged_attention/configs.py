"""How the two launches of paged attention are cut; None: what fits every device."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll_kernels.tuning.config import LaunchConfig


@dataclass(frozen=True, slots=True)
class PagedConfigs:
    """Found by tuning, for one head shape on one device."""

    decode: LaunchConfig | None = None
    prefill: LaunchConfig | None = None


DEFAULTS = PagedConfigs()
