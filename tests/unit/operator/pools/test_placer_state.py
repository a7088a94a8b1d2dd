"""Sizes of models that a pool remembers."""

from __future__ import annotations

from typing import Any

import msgspec
from operator_support.objects import EPOCH
from operator_support.stub_host import MIB, StubHost

from plimsoll_operator.placement.records.model import Need
from plimsoll_operator.pools.hosts.host_registry import HostPod, Known
from plimsoll_operator.pools.hosts.inventory import stored_needs
from plimsoll_operator.pools.hosts.model_host import host_status
from plimsoll_operator.pools.placer_state import PlacerState
from plimsoll_operator.spec.identity import ObjectKey

MODEL = ObjectKey("team", "m")
PLACE = (MODEL, "r1")


def told(level: str, uid: str = "h1", **changes: Any) -> Known:
    """Return a host with the model at this level, with changes in its entry."""
    host = StubHost()
    spec = {"revision": "r1", "servedNames": ["m"], "pinned": False, "weight": 1.0, "priority": 0}
    host.change("place", MODEL, {"operation": "o", "spec": spec, "level": level})
    found = Known(HostPod(ObjectKey("team", "shared"), uid, uid, "n1", "198.18.0.9", 0), host.report())
    entry = found.report.entry(MODEL) if found.report is not None else None
    assert entry is not None
    found.entries = {MODEL: msgspec.structs.replace(entry, **changes)}
    return found


def test_the_size_of_a_model_that_never_woke_is_what_its_headers_say() -> None:
    pool = PlacerState()
    pool.measure([told("OnDisk")])
    assert pool.sizes == {PLACE: Need(100 * MIB, 0, 0, 100 * MIB)}


def test_of_two_hosts_the_larger_figure_counts() -> None:
    pool, small = PlacerState(), told("OnDisk", "h2")
    needs = small.entries[MODEL].needs
    assert needs is not None
    small.entries[MODEL] = msgspec.structs.replace(
        small.entries[MODEL], needs=msgspec.structs.replace(needs, weights=MIB)
    )
    for order in ([told("OnDisk"), small], [small, told("OnDisk")]):
        pool.measure(order)
        assert pool.sizes[PLACE].weights == 100 * MIB


def test_a_model_whose_files_are_fetched_has_the_size_that_it_had() -> None:
    pool = PlacerState()
    pool.measure([told("Fetching", needs=None)])
    assert pool.sizes[PLACE] == Need(0)
    pool.measure([told("Resident")])
    pool.measure([told("Fetching", needs=None)])
    assert pool.sizes[PLACE].device == 100 * MIB


def test_a_process_that_has_heard_no_host_yet_goes_by_what_modelhosts_say() -> None:
    """The sizes are the same whether the model is awake, or asleep on a restarted host."""
    for level in ("Resident", "OnDisk"):
        found = told(level)
        status = host_status(found, False, {}, EPOCH, lambda _: True)
        pool = PlacerState()
        pool.measure([Known(found.pod)], stored_needs(status))
        assert pool.sizes == {PLACE: Need(100 * MIB, 0, 0, 100 * MIB)}
        pool.measure([])
        assert pool.sizes == {}


def test_what_no_host_has_any_more_is_forgotten() -> None:
    pool = PlacerState()
    pool.measure([told("OnDisk")])
    pool.measure([])
    assert pool.sizes == {}
