"""The loading cost with known popularities, but unknown next requests: an estimate of the least that rules can pay that
do not know the future.

One memory without borders, as large as all lines and sleepers' memory together, keeps the models that save the most
seconds of loading per byte over the whole trace; every other request loads its model from files. No rule knows that
much, and no pool has such a memory; a rule that also detected the current drift could do better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from plimsoll_operator.simulation.pool import Host
from plimsoll_operator.simulation.trace import Trace


def popularity_known(trace: Trace, hosts: Sequence[Host]) -> float:
    """Return the seconds of loading that the rule of this module pays, without wakes."""
    asked = Counter(request.model for request in trace.requests)
    left = sum(host.line + host.sleepers for host in hosts)
    seconds = 0.0
    for model in sorted(trace.models, key=lambda model: -asked[model.key] * model.load_seconds / model.need.host):
        if not asked[model.key]:
            continue
        keeps = model.need.device <= left
        left -= model.need.device if keeps else 0
        seconds += model.load_seconds * (1 if keeps else asked[model.key])
    return seconds
