"""Groups get nodes for all of their pods or hold none, one group at a time, and no group blocks others for long."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from harness import nodes
from harness.figures import Figures, judged
from harness.group_faults import Holds
from harness.groups import live, wait_formed
from harness.kube import Kube, Object
from harness.release import Release
from harness.room import Room, limit
from harness.sampling import sampled
from harness.settings import Settings
from harness.waiting import Stopwatch, hold, until

MODEL = "group-turn"
FITTING, IN_A_ZONE, FIRST = f"{MODEL}-fitting", f"{MODEL}-zone", f"{MODEL}-first"
ZONE = "e2e.plimsoll.dev/zone"
HELD_SECONDS = 90
PAIR = {"tensor": 2, "pods": 2}
EIGHT = {"tensor": 2, "pipeline": 4, "pods": 8}


def test_a_group_that_does_not_fit_holds_no_pods_and_starts_when_it_fits(
    kube: Kube, tiny: Object, release: Release, two_nodes: tuple[str, str], settings: Settings, measured: Figures
) -> None:
    """Two groups of two pods, and room for three pods."""
    roomy, narrow = two_nodes
    room = limit(kube, release.image("operator"), {roomy: 2, narrow: 1})
    names = [f"{MODEL}-{number}" for number in range(2)]
    holds = Holds(kube, names, pods=2)
    with sampled(holds.look):
        for name in names:
            kube.apply(_group(tiny, name, room))
        since = Stopwatch()
        waiting = until(
            "one of the two groups without pods, and why",
            lambda: next((name for name in names if _is_waiting(kube, name)), None),
            timeout=HELD_SECONDS,
            state=lambda: [kube.describe(name) for name in names],
        )
        measured["given_back_after_seconds"] = since.seconds
        message = kube.conditions()[waiting]["Placed"]["message"]
        assert re.match(rf"pod {waiting}-\w+ \(1 of 2\) found no node: ", message), message
        assert "Insufficient ephemeral-storage" in message, "it does not have the words of the scheduler"
        [serving] = set(names) - {waiting}
        wait_formed(kube, serving)
        hold(300 if settings.long else 0)
        wait_formed(kube, serving)
        opened = Stopwatch()
        room.open(narrow)
        wait_formed(kube, waiting)
        measured["started_after_seconds"] = opened.seconds
    measured["held_without_being_ready"] = judged([*holds.longest.values()], HELD_SECONDS, 100)


def test_a_group_that_fits_starts_behind_ten_that_do_not(
    kube: Kube, tiny: Object, release: Release, two_nodes: tuple[str, str], measured: Figures
) -> None:
    roomy, narrow = two_nodes
    room = limit(kube, release.image("operator"), {roomy: 2, narrow: 1})
    large = [f"{MODEL}-large-{number}" for number in range(10)]
    for name in large:
        kube.apply(_group(tiny, name, room, EIGHT))
    until("a pod of one of them", lambda: any(live(kube, name) for name in large), timeout=30)
    since = Stopwatch()
    kube.apply(_group(tiny, FITTING, room))
    until(
        "the group that fits on nodes",
        lambda: (c := kube.condition(FITTING, "Placed")) and c["status"] == "True",
        timeout=HELD_SECONDS,
        state=lambda: [kube.describe(name) for name in (FITTING, *large)],
    )
    measured["placed_after_seconds"] = since.seconds
    wait_formed(kube, FITTING)
    measured["ready_after_seconds"] = since.seconds
    assert not any(member.ready for name in large for member in live(kube, name))


def test_a_group_stays_within_one_zone_and_says_that_it_waits_for_room_there(
    kube: Kube, tiny: Object, release: Release, two_nodes: tuple[str, str], measured: Figures
) -> None:
    """Each zone is a node, and has room for one of the two pods."""
    room = limit(kube, release.image("operator"), dict.fromkeys(two_nodes, 1))
    spans: set[tuple[str, ...]] = set()

    def look() -> None:
        spans.add(tuple(sorted({member.node for member in live(kube, IN_A_ZONE) if member.node})))

    with nodes.labelled({node: {ZONE: node} for node in two_nodes}), sampled(look):
        since = Stopwatch()
        kube.apply(_group(tiny, IN_A_ZONE, room, PAIR | {"topologyKey": ZONE}))
        until(
            "no pods, and why",
            lambda: _is_waiting(kube, IN_A_ZONE),
            timeout=HELD_SECONDS,
            state=lambda: kube.describe(IN_A_ZONE),
        )
        measured["given_back_after_seconds"] = since.seconds
        for node in two_nodes:
            room.open(node)
        wait_formed(kube, IN_A_ZONE)
        measured["ready_after_seconds"] = since.seconds
    assert {len(span) for span in spans} <= {0, 1}, spans


def test_twenty_groups_settle_on_room_for_five(
    kube: Kube, tiny: Object, release: Release, two_nodes: tuple[str, str], settings: Settings, measured: Figures
) -> None:
    """When groups go, as many of the waiting ones start, until all have served."""
    if not settings.long:
        pytest.skip("it takes many minutes, so it runs at full length only")
    room = limit(kube, release.image("operator"), dict.fromkeys(two_nodes, 5))
    since = Stopwatch()
    kube.apply(_group(tiny, FIRST, room))
    wait_formed(kube, FIRST)
    one = since.seconds
    kube.delete_model(FIRST)
    until("its pods gone", lambda: not kube.pods(FIRST), timeout=120)
    names = [f"{MODEL}-twenty-{number}" for number in range(20)]
    holds = Holds(kube, names, pods=2)
    waiting = set(names)
    took: list[float] = []
    with sampled(holds.look):
        for name in names:
            kube.apply(_group(tiny, name, room))
        while waiting:
            since = Stopwatch()
            until(
                f"five of the {len(waiting)} groups ready",
                lambda: len(_ready(kube, waiting)) == 5,
                timeout=1200,
                state=lambda: {name: kube.conditions()[name].get("Placed") for name in names},
            )
            took.append(since.seconds)
            for name in _ready(kube, waiting):
                kube.delete_model(name)
                waiting.discard(name)
    measured |= {"one": one, "five_of_twenty": judged(took[:1], round(6 * one, 1), 100), "each_five": took}
    measured["held_without_being_ready"] = judged([*holds.longest.values()], HELD_SECONDS, 100)


def _group(tiny: Object, name: str, room: Room, parallel: Object = PAIR) -> Object:
    resources = {"cpu": "20m", "memory": "1Gi", "ephemeralStorage": room.storage}
    return tiny | {"metadata": {"name": name}, "spec": tiny["spec"] | {"parallel": parallel, "resources": resources}}


def _is_waiting(kube: Kube, name: str) -> bool:
    """Return whether a model has no pods, and its status says that its group found no nodes."""
    placed = kube.condition(name, "Placed")
    return placed is not None and placed["reason"] == "GroupNotPlaced" and not live(kube, name)


def _ready(kube: Kube, names: Sequence[str] | set[str]) -> list[str]:
    return [name for name in sorted(names) if sum(member.ready for member in live(kube, name)) == 2]
