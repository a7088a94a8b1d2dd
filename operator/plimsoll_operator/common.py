"""What passes over objects of every kind work with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from plimsoll_operator.api import Api
from plimsoll_operator.build.budget import Budgets
from plimsoll_operator.build.image import Image
from plimsoll_operator.clock import utc_now
from plimsoll_operator.expectations import Expectations
from plimsoll_operator.kinds import Caches
from plimsoll_operator.names import NameRegistry
from plimsoll_operator.nodes import NodeRegistry


@dataclass(frozen=True, slots=True)
class Common:
    """One process has one of it.

    `instance` is its name in events. `may_act` is asked before every change. `budgets`: for which objects disruption
    budgets are made.
    """

    api: Api
    caches: Caches
    expectations: Expectations
    image: Image
    names: NameRegistry
    nodes: NodeRegistry
    instance: str
    may_act: Callable[[], bool]
    budgets: Budgets = field(default_factory=Budgets)
    clock: Callable[[], datetime] = utc_now
