"""An operator that is killed after any write: a canary ends as without the kill, and no rolled-back revision is
retried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_support.objects import Json
from operator_support.rolling import BAD, STEPS, STUCK, Process, World, is_live, is_ready, label

from plimsoll_operator.build.controller_revision import TAKEN_BACK
from plimsoll_operator.spec.identity import GROUP_LABEL, KIND

GOOD, BETTER = 100, 200
CANARY: Json = {"steps": STEPS, "minRequests": 20}
SURGE = 1
QUIET = 12


class Killed(BaseException):
    """The process ends here: its request was executed, but it did not get the response."""


@dataclass(frozen=True)
class Ask:
    """A change of the spec; `soon`: the next one comes while pods of this one are still being created."""

    length: int
    replicas: int
    soon: bool


ASKS = st.lists(
    st.builds(Ask, st.sampled_from([GOOD, BETTER, BAD, STUCK]), st.integers(0, 4), st.booleans()),
    min_size=1,
    max_size=4,
)
GAPS = st.lists(st.integers(1, 9), max_size=12)
"""Writes between two kills."""


class Story:
    """The same changes, with or without kills."""

    def __init__(self, gaps: Sequence[int], replicas: int = 2) -> None:
        self.world, self.gaps = World(), list(gaps)
        self.left = self.gaps.pop(0) if self.gaps else 0
        self.kills, self.replicas = 0, replicas
        self.weights: list[int] = []
        self.world.strike = self.strike
        self.world.ask_for(GOOD, replicas, CANARY)
        self.process = Process(self.world)
        self.settle()

    def strike(self) -> None:
        if self.left:
            self.left -= 1
            if not self.left:
                self.left = self.gaps.pop(0) if self.gaps else 0
                self.kills += 1
                raise Killed

    def tell(self, asks: Sequence[Ask]) -> dict[str, Any]:
        for ask in asks:
            self.ask(ask.length, ask.replicas)
            if ask.soon:
                self.turn(1)
                self.turn(1)
            else:
                self.settle()
        self.settle()
        return self.end()

    def ask(self, length: int, replicas: int) -> None:
        self.replicas = replicas
        self.world.ask_for(length, replicas, CANARY)

    def settle(self) -> None:
        """Run until nothing changes for longer than any wait."""
        quiet = 0
        for _ in range(400):
            quiet = 0 if self.turn(20) else quiet + 1
            if quiet > QUIET:
                return
        raise AssertionError(f"it does not come to rest: {self.world.canary}")

    def turn(self, seconds: float) -> bool:
        before = self.world.server.version
        for _ in range(20):
            try:
                if not self.process.one_pass():
                    break
            except Killed:
                self.process = Process(self.world)
            self.check()
        self.world.proceed()
        self.world.serve()
        self.world.now += seconds
        return self.world.server.version != before

    def check(self) -> None:
        live = [pod for pod in self.world.pods if is_live(pod)]
        most = self.most = max(getattr(self, "most", 0), self.replicas + SURGE)
        assert len(live) <= most
        groups = Counter(pod["metadata"]["labels"][GROUP_LABEL] for pod in self.world.pods)
        assert all(count == 1 for count in groups.values()), groups
        self.weights.append(self.world.canary.get("weight", 0))

    def end(self) -> dict[str, Any]:
        """Return the final state without names and times."""
        status, canary = self.world.model["status"], self.world.canary
        assert all(is_ready(pod) or self.is_stuck(pod) for pod in self.world.pods)
        revisions = self.world.server.objects["ControllerRevision"].values()
        return {
            "pods": Counter(map(label, self.world.pods)),
            "stable": status.get("stableRevision"),
            "canary": {name: canary.get(name) for name in ("revision", "stableRevision", "weight", "step", "state")},
            "marked": sorted(label(r) for r in revisions if TAKEN_BACK in r["metadata"].get("annotations", {})),
            "conditions": {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]},
        }

    def is_stuck(self, pod: Json) -> bool:
        return f"{STUCK}" in pod["spec"]["containers"][0]["args"]


@pytest.mark.long
@given(ASKS, GAPS)
@settings(max_examples=40, deadline=None)
def test_killed_anywhere_it_ends_where_an_undisturbed_run_does(asks: list[Ask], gaps: list[int]) -> None:
    assert Story(gaps).tell(asks) == Story(()).tell(asks)


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_a_good_canary_goes_up_its_steps_and_gets_all(replicas: int) -> None:
    story = Story((), replicas)
    found = story.tell([Ask(BETTER, replicas, soon=False)])
    assert sorted(set(story.weights)) == [0, 10, 50]
    assert list(found["pods"].values()) == [replicas]
    assert found["stable"] in found["pods"]
    assert found["conditions"]["Progressing"] == ("False", "Settled")
    reasons = [reason for _, reason, _ in story.world.events]
    assert [r for r in reasons if r in ("Canary", "Promoted")] == ["Canary"] * 3 + ["Promoted"]


@pytest.mark.parametrize("length", [BAD, STUCK])
@pytest.mark.parametrize("replicas", [1, 3])
def test_a_bad_canary_is_taken_back_and_not_tried_again(length: int, replicas: int) -> None:
    story = Story((), replicas)
    stable = story.end()["stable"]
    found = story.tell([Ask(length, replicas, soon=False)])
    assert max(story.weights) <= 10
    assert found["pods"] == {stable: replicas}
    assert found["canary"]["state"] == "TakenBack"
    assert found["marked"] == [found["canary"]["revision"]]
    assert found["conditions"]["Stalled"] == ("True", "TakenBack")
    assert found["conditions"]["Ready"] == ("True", "Ready")
    notes = [note for _, reason, note in story.world.events if reason == "TakenBack"]
    assert len(notes) == 1
    assert ("requests failed; on stable pods, 0 of" if length == BAD else "of its pods are ready") in notes[0]
    made = len(story.world.events)
    story.ask(length, replicas + 1)  # scaled, as by an HPA
    story.settle()
    assert story.end()["pods"] == {stable: replicas + 1}
    del story.world.model["status"]["canary"]
    story.process = Process(story.world)
    story.settle()
    assert story.end()["canary"]["state"] == "TakenBack", "its revision says so, too"
    assert story.end()["pods"] == {stable: replicas + 1}
    assert "Canary" not in [reason for _, reason, _ in story.world.events[made:]]


def test_without_its_status_a_model_is_rolled_to_its_spec() -> None:
    """See docs/reference/api-versions.md on a restore without status: there is no revision to roll back to."""
    story = Story(())
    found = story.tell([Ask(BAD, 2, soon=False)])
    assert found["pods"] == {found["stable"]: 2}
    story.world.server.change(KIND, "m", lambda item: item.pop("status"))
    story.process = Process(story.world)
    story.settle()
    assert story.end()["pods"] == {found["canary"]["revision"]: 2}


def test_what_was_taken_back_is_tried_again_once_the_spec_or_the_terms_have_changed() -> None:
    story = Story(())
    story.tell([Ask(BAD, 2, soon=False)])
    story.ask(GOOD, 2)
    story.settle()
    assert story.end()["marked"] == [story.end()["marked"][0]]
    assert story.world.canary == {}
    begun = _begun(story)
    story.ask(BAD, 2)
    story.settle()
    assert _begun(story) == begun + 1
    assert story.end()["canary"]["state"] == "TakenBack"
    story.world.ask_for(BAD, 2, {**CANARY, "maxErrorRate": "60%"})
    story.settle()
    assert story.end()["pods"].keys() != {story.end()["canary"]["stableRevision"]}
    assert story.end()["stable"] in story.end()["pods"]
    assert story.end()["marked"] == []


def test_a_paused_step_costs_nothing_however_long_it_lasts() -> None:
    story = Story(())
    terms = {"steps": [{"weight": 10, "paused": True}]}
    story.world.ask_for(BETTER, 2, terms)
    story.settle()
    assert story.world.canary["state"] == "Observing"
    story.world.now += 100_000
    assert not story.turn(1)
    assert story.end()["conditions"]["Progressing"] == ("True", "Canary")
    story.world.ask_for(BETTER, 2, {"steps": [{"weight": 10, "pauseSeconds": 0}]})
    story.settle()
    assert story.world.canary == {}
    assert story.end()["stable"] in story.end()["pods"]


def test_a_spec_that_is_written_again_while_its_pods_still_go_is_a_new_canary() -> None:
    story = Story(())
    story.ask(BETTER, 2)
    for _ in range(6):
        story.turn(1)
    revision = story.world.canary["revision"]
    story.ask(GOOD, 2)
    story.process.result()
    assert story.world.canary["state"] == "TakenBack"
    assert any(label(pod) == revision for pod in story.world.pods)
    story.ask(BETTER, 2)
    story.process.result()
    assert (story.world.canary["revision"], story.world.canary["state"]) == (revision, "Starting")
    story.settle()
    assert story.end()["stable"] == revision


LONG = 100_000
"""Longer than any deadline."""


def _old(replicas: int = 2) -> Story:
    """Return a story whose canary has half of the requests and has been observed for long."""
    story = Story((), replicas)
    story.world.ask_for(BETTER, replicas, {"steps": [{"weight": 50, "paused": True}]})
    story.settle()
    story.world.now += LONG
    assert (story.world.canary["state"], story.world.canary["weight"]) == ("Observing", 50)
    return story


def _goes_on(story: Story) -> bool:
    """Settle, and return whether the canary still observes with its weight. Assert that it was never rolled back."""
    story.settle()
    assert story.end()["conditions"]["Progressing"] == ("True", "Canary")
    assert "lackingSince" not in story.world.canary
    assert "TakenBack" not in [reason for _, reason, _ in story.world.events]
    return bool(story.world.canary["state"] == "Observing" and story.world.canary["weight"] == 50)


def test_pods_that_a_larger_model_needs_have_their_own_time() -> None:
    story = _old()
    story.replicas = story.world.model["spec"]["replicas"] = 4
    story.world.server.put("ModelDeployment", story.world.model)
    assert _goes_on(story)
    assert Counter(map(label, story.world.pods))[story.world.canary["revision"]] == 2


def test_a_canary_goes_on_after_a_long_time_without_replicas() -> None:
    story = _old()
    for replicas in (0, 2):
        story.replicas = story.world.model["spec"]["replicas"] = replicas
        story.world.server.put("ModelDeployment", story.world.model)
        story.settle()
        story.world.now += LONG
    assert _goes_on(story)


def test_a_pod_of_a_canary_that_is_deleted_is_made_again_however_old_it_was() -> None:
    story = _old()
    mine = [p["metadata"]["name"] for p in story.world.pods if label(p) == story.world.canary["revision"]]
    for name in mine:
        story.world.server.remove("Pod", name)
    assert _goes_on(story)


def test_a_pod_that_cannot_be_made_again_takes_the_canary_back_in_the_end() -> None:
    story = _old()
    story.world.proceed = lambda: None  # type: ignore[method-assign]  # no kubelet answers any more
    mine = [p["metadata"]["name"] for p in story.world.pods if label(p) == story.world.canary["revision"]]
    for name in mine:
        story.world.server.remove("Pod", name)
    for _ in range(30):
        story.turn(20)
    assert story.world.canary["state"] == "TakenBack"


def test_without_its_terms_all_pods_are_replaced_at_once() -> None:
    story = Story(())
    story.tell([Ask(BAD, 2, soon=False)])
    story.world.ask_for(BAD, 2, None)
    story.settle()
    assert story.world.canary == {}
    assert story.end()["stable"] in story.end()["pods"]
    assert len(story.end()["pods"]) == 1


def test_a_stable_pod_that_dies_is_replaced_by_a_stable_one() -> None:
    story = Story((), 3)
    stable = story.end()["stable"]
    story.ask(BETTER, 3)
    for _ in range(8):
        story.turn(1)
    counts = Counter(map(label, story.world.pods))
    assert (counts[stable], len(counts)) == (2, 2)
    for revision in counts:
        name = next(pod["metadata"]["name"] for pod in story.world.pods if label(pod) == revision)
        story.world.server.remove("Pod", name)
        for _ in range(4):
            story.turn(1)
        assert Counter(map(label, story.world.pods)) == counts


def _begun(story: Story) -> int:
    return sum(reason == "Canary" and "starts" in note for _, reason, note in story.world.events)
