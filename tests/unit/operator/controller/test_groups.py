"""Groups through whole reconciles: pods, status and events, also with an operator that is killed after any write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_support.objects import EPOCH, Json, stamp
from operator_support.rolling import KEY, READY, Process, World

from plimsoll_operator.kube.api import ApiError
from plimsoll_operator.spec.identity import GROUP_LABEL, HASH_LABEL, INDEX_LABEL, KIND, LEADER_ANNOTATION, ObjectKey

SIZE = 2
QUIET = 16


class Killed(BaseException):
    """The process ends here: its request was executed, but it did not get the response."""


class GroupWorld(World):
    """A model with groups of two pods, and room for `slots` pods. `loads`: no group becomes ready."""

    def __init__(self) -> None:
        super().__init__()
        self.slots, self.made, self.loads = 99, 0, False
        self.server.now = lambda: EPOCH + timedelta(seconds=self.now)

    def ask(self, length: int, replicas: int, **rollout: Any) -> None:
        self.ask_for(length, replicas, None)
        body = self.model
        body["spec"] |= {"parallel": {"tensor": SIZE, "pods": SIZE}}
        body["spec"]["rollout"] |= rollout
        body["metadata"]["generation"] += 1
        self.server.put(KIND, body)

    def proceed(self) -> None:
        """Let the scheduler and kubelets act: a pod gets a node, then an address, and a group is ready as a whole."""
        used = sum(bool(pod["spec"].get("nodeName")) for pod in self.pods)
        for name, pod in list(self.server.objects["Pod"].items()):
            if "deletionTimestamp" in pod["metadata"]:
                self.server.remove("Pod", name)
                used -= bool(pod["spec"].get("nodeName"))
            elif pod["spec"].get("nodeName"):
                self._serve(name, pod)
            elif used < self.slots:
                used += 1
                self._start(name)
            else:
                self._refuse(name)

    def _start(self, name: str) -> None:
        self.made += 1
        loading: Json = {"phase": "Running", "podIP": f"198.18.0.{self.made}", "conditions": []}
        self.server.change("Pod", name, lambda item: item["spec"].update(nodeName="n1"))
        self.server.change("Pod", name, lambda item: item.update(status=loading))

    def _refuse(self, name: str) -> None:
        why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes fit"}
        status = {"phase": "Pending", "conditions": [why]}
        if self.server.objects["Pod"][name]["status"] != status:
            self.server.change("Pod", name, lambda item: item.update(status=status))

    def _serve(self, name: str, pod: Json) -> None:
        members = [other for other in self.pods if group_of(other) == group_of(pod)]
        whole = not self.loads and len(members) == SIZE and all(other["status"].get("podIP") for other in members)
        status = pod["status"] | {"conditions": READY["conditions"] if whole else []}
        if status != pod["status"]:
            self.server.change("Pod", name, lambda item: item.update(status=status))

    def remove(self, index: int) -> Json:
        """Remove a pod with this index, as if its node had ended."""
        pod = next(pod for pod in self.pods if index_of(pod) == index)
        self.server.remove("Pod", pod["metadata"]["name"])
        return pod

    @property
    def status(self) -> Json:
        found: Json = self.model["status"]
        return found

    def condition(self, kind: str) -> Json:
        found: Json = next(c for c in self.status["conditions"] if c["type"] == kind)
        return found

    def reasons(self) -> Counter[str]:
        return Counter(reason for _, reason, _ in self.events)


def group_of(pod: Json) -> str:
    return str(pod["metadata"]["labels"][GROUP_LABEL])


def index_of(pod: Json) -> int:
    return int(pod["metadata"]["labels"][INDEX_LABEL])


class Story:
    """A model's life, with or without kills after these numbers of writes."""

    def __init__(self, gaps: Sequence[int] = ()) -> None:
        self.world, self.gaps = GroupWorld(), list(gaps)
        self.left = self.gaps.pop(0) if self.gaps else 0
        self.world.strike = self.strike
        self.process: Process | None = None

    def strike(self) -> None:
        if self.left:
            self.left -= 1
            if not self.left:
                self.left = self.gaps.pop(0) if self.gaps else 0
                raise Killed

    def ask(self, length: int, replicas: int, **rollout: Any) -> None:
        self.world.ask(length, replicas, **rollout)
        self.process = self.process or Process(self.world)

    def turn(self, seconds: float) -> bool:
        before = self.world.server.version
        for _ in range(20):
            assert self.process is not None
            try:
                if not self.process.one_pass():
                    break
            except Killed:
                self.process = Process(self.world)
            self.check()
        self.world.proceed()
        self.world.now += seconds
        return self.world.server.version != before

    def says(self, words: str) -> list[Any]:
        """Answer for all leaders that are to be asked, and return the models that their words wake."""
        assert self.process is not None
        registry, now = self.process.leaders, self.world.now
        for entry in registry.take_due(now, 99):
            registry.answered(entry, words, now)
        return registry.show(now)

    def settle(self, seconds: float = 20) -> None:
        quiet = 0
        for _ in range(400):
            quiet = 0 if self.turn(seconds) else quiet + 1
            if quiet > QUIET:
                return
        raise AssertionError(f"it does not come to rest: {self.world.status}")

    def check(self) -> None:
        """No pod is there twice, no group mixes revisions, and each worker has its leader's address."""
        live = [pod for pod in self.world.pods if "deletionTimestamp" not in pod["metadata"]]
        places = Counter((group_of(pod), index_of(pod)) for pod in live)
        assert not places or max(places.values()) == 1, places
        for group in {group_of(pod) for pod in live}:
            members = [pod for pod in live if group_of(pod) == group]
            assert len({pod["metadata"]["labels"][HASH_LABEL] for pod in members}) == 1
            leaders = [pod["status"].get("podIP") for pod in members if index_of(pod) == 0]
            told = {pod["metadata"].get("annotations", {}).get(LEADER_ANNOTATION) for pod in members if index_of(pod)}
            assert not leaders or told <= set(leaders)

    def end(self) -> Any:
        pods = Counter((group_of(p), p["metadata"]["labels"][HASH_LABEL]) for p in self.world.pods)
        told = {c["type"]: (c["status"], c["reason"]) for c in self.world.status["conditions"]}
        counts = {key: self.world.status[key] for key in ("replicas", "readyReplicas", "updatedReplicas")}
        return sorted(Counter(pod_hash for _, pod_hash in pods).items()), set(pods.values()), told, counts


def changes() -> list[Callable[[Story], object]]:
    return [
        lambda story: story.ask(100, 2),
        lambda story: story.ask(200, 2),
        lambda story: story.world.remove(1),
        lambda story: story.ask(300, 2, maxSurge=0),
        lambda story: story.world.remove(0),
        lambda story: story.ask(300, 3),
        lambda story: story.ask(300, 1),
    ]


def tell(story: Story, after: Callable[[Any], None] = lambda _: None) -> Any:
    for change in changes():
        change(story)
        story.settle()
        after(story.end())
    return story.end()


def test_groups_come_roll_heal_and_scale() -> None:
    story, ends = Story(), list[Any]()
    tell(story, ends.append)
    assert [counts["readyReplicas"] for *_, counts in ends] == [2, 2, 2, 2, 2, 3, 1]
    assert all(sizes == {SIZE} and told["Ready"] == ("True", "Ready") for _, sizes, told, _ in ends)
    assert story.world.status["parallel"] == "tp2, 2 pods"
    (group,) = story.world.status["groups"]
    assert group == {"group": group["group"], "pods": 2, "readyPods": 2, "nodes": ["n1"]}
    assert story.world.status["selector"].endswith(f",{INDEX_LABEL}=0")
    assert story.world.reasons()["GroupLost"] == 2
    assert story.world.reasons()["GroupFormed"] >= 6


@settings(deadline=None, max_examples=12)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=12))
def test_an_operator_that_is_killed_after_any_write_reaches_the_same_end(gaps: list[int]) -> None:
    assert tell(Story(gaps)) == tell(Story())


def test_a_worker_is_replaced_alone_and_a_leader_takes_its_group_with_it() -> None:
    story = Story()
    story.ask(100, 1)
    story.settle()
    leader, worker = sorted(story.world.pods, key=index_of)
    story.world.remove(1)
    story.turn(1)
    assert story.world.condition("Loaded")["reason"] in ("GroupLost", "Loaded")
    story.settle()
    now = {index_of(pod): pod["metadata"]["name"] for pod in story.world.pods}
    assert now[0] == leader["metadata"]["name"]
    assert now[1] != worker["metadata"]["name"]
    story.world.remove(0)
    story.settle()
    assert not set(now.values()) & {pod["metadata"]["name"] for pod in story.world.pods}
    assert len(story.world.pods) == SIZE


def test_a_group_that_does_not_serve_says_what_its_leader_says() -> None:
    story = Story()
    story.world.loads = True
    story.ask(100, 1)
    assert story.says("none") == [], "without an address nothing is asked"
    story.settle()
    (leader,) = (pod["metadata"]["name"] for pod in story.world.pods if index_of(pod) == 0)
    assert story.says("wait for member 1") == [KEY]
    story.turn(1)
    (group,) = story.world.status["groups"]
    assert (group["reason"], group["message"]) == ("GroupForming", f"{leader}: wait for member 1")
    assert story.world.condition("Loaded")["message"].endswith(f"; group 0: {leader}: wait for member 1")
    story.world.loads = False
    story.settle()
    assert "message" not in story.world.status["groups"][0]
    assert story.says("old") == [], "a group that serves is not asked"

    story.world.loads = True
    story.world.remove(1)
    story.settle()
    assert story.says("the connection to member 1 was lost; wait for member 1") == [KEY]
    story.turn(1)
    loaded = story.world.condition("Loaded")
    assert loaded["reason"] == "GroupLost"
    assert loaded["message"].endswith(f"{leader}: the connection to member 1 was lost; wait for member 1")
    story.world.loads = False
    story.settle()
    assert story.world.condition("Loaded")["reason"] == "Loaded"


def test_words_of_leaders_write_the_status_at_most_every_five_seconds() -> None:
    story, writes = Story(), 0
    story.world.loads = True
    story.ask(100, 1)
    story.settle()
    process = story.process
    assert process is not None
    for second in range(60):
        story.world.now += 1
        story.says(f"load {second}")
        writes += process.one_pass()
        assert not process.one_pass()
    assert 10 <= writes <= 13


def test_a_group_without_room_says_why_and_gives_its_pods_back() -> None:
    story = Story()
    story.world.slots = 3
    story.ask(100, 2)
    most, longest, since = 0, 0.0, None
    for _ in range(300):
        story.turn(2)
        most = max(most, len(story.world.pods))
        holds = len(story.world.pods) > SIZE
        since = (story.world.now if since is None else since) if holds else None
        longest = max(longest, story.world.now - since if since is not None else 0.0)
    assert (story.world.status["readyReplicas"], most) == (1, 4)
    assert longest <= 90
    placed = story.world.condition("Placed")
    assert (placed["status"], placed["reason"]) == ("False", "GroupNotPlaced")
    assert placed["message"].startswith("pod m-")
    assert " (1 of 2) found no node: 0/2 nodes fit; the group was given back " in placed["message"]
    assert story.world.reasons()["GroupGivenBack"] >= 3
    assert "since then" not in placed["message"]
    labels = {GROUP_LABEL: "9", INDEX_LABEL: "0", HASH_LABEL: "x"}
    other = {"name": "other", "creationTimestamp": stamp(story.world.server.now()), "labels": labels}
    story.world.server.put("Pod", {"metadata": other, "spec": {"nodeName": "n2"}, "status": {"phase": "Running"}})
    for _ in range(200):
        story.turn(2)
    assert story.world.condition("Placed")["message"].endswith("since then, pods of other models got nodes: other")
    story.world.server.remove("Pod", "other")
    story.world.slots = 4
    story.settle()
    assert story.world.condition("Placed")["reason"] == "Scheduled"
    assert story.world.status["readyReplicas"] == 2


@pytest.mark.parametrize("surge", [1, 0])
def test_a_roll_on_a_full_cluster_keeps_one_of_two_groups(surge: int) -> None:
    story = Story()
    story.world.slots = 4
    story.ask(100, 2, maxSurge=surge)
    story.settle()
    story.ask(200, 2, maxSurge=surge)
    for _ in range(200):
        story.turn(5)
        if "readyReplicas" in story.world.status:
            assert story.world.status["readyReplicas"] >= 1
    assert story.world.status["updatedReplicas"] == story.world.status["readyReplicas"] == 2


def test_a_reconcile_that_fails_does_not_keep_the_turn_of_groups() -> None:
    """Here the revision is stored, and then the API server fails."""
    story, other = Story(), ObjectKey("team", "other")
    story.ask(100, 1)

    def fail() -> None:
        raise ApiError(500, "the API server fails")

    story.world.strike = fail
    assert story.process is not None
    turns = story.process.reconciler.turns
    for _ in range(3):
        with pytest.raises(ApiError):
            story.process.result()
        now = story.world.server.now()
        assert turns.turn(other, now, placing=False, now=now).may_place
        turns.end(other, now)
    story.world.strike = lambda: None
    story.world.now += 60
    story.settle()
    assert story.world.status["readyReplicas"] == 1
