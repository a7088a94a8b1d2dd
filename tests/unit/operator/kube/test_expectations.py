"""The stores show a reconcile's writes before the next reconcile, whatever responses are lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta

import pytest
from operator_support.passes import reconciler_of, run
from operator_support.server import CHILDREN, NAMESPACE, Fate, Server, ServerApi, model_body

from plimsoll_cluster.keys import Key, ObjectKey
from plimsoll_operator.controller.event_routing import route_changes
from plimsoll_operator.kube.api import ApiError
from plimsoll_operator.kube.expectations import PATIENCE_SECONDS, Expectations
from plimsoll_operator.kube.result import ReconcileResult
from plimsoll_operator.kube.stores import Stores
from plimsoll_operator.planning.nodes import NodeRegistry
from plimsoll_operator.spec.identity import KIND

KEY = ObjectKey(NAMESPACE, "a")
WHOLE = Key(KIND, NAMESPACE, "a")


class Queue:
    """Records what is added."""

    def __init__(self) -> None:
        self.added: list[Key] = []

    def add(self, key: Key) -> None:
        self.added.append(key)

    def add_all(self, keys: Iterator[Key]) -> None:
        self.added += keys


class Process:
    """One process of the operator, whose stores get events when the test says so."""

    def __init__(self, replicas: int = 1) -> None:
        self.server, self.stores, self.queue, self.now = Server(), Stores(None), Queue(), 0.0
        self.server.put(KIND, model_body("a", replicas))
        self.fates: list[Fate] = []
        self.unreadable = False
        self.as_a_pod_is_sent: Callable[[], object] = lambda: None
        self.api = ServerApi(
            self.server,
            lambda: self.fates.pop(0) if self.fates else Fate.WELL,
            self.judge,
            read_fate=lambda: Fate.LOST if self.unreadable else Fate.WELL,
        )
        self.expectations, self.nodes = Expectations(lambda: self.now), NodeRegistry()
        self._reconciler = reconciler_of(self.api, self.stores, self.expectations, self.nodes, now=lambda: self.now)
        self._heard = dict.fromkeys(self.server.objects, 0)
        route_changes(self.stores, self.queue, self.expectations, self.nodes)  # type: ignore[arg-type]
        self.list()

    def judge(self, pod: Mapping[str, object]) -> Callable[[], object]:
        self.as_a_pod_is_sent()
        return lambda: None

    def list(self) -> None:
        """List everything in its present state."""
        for store in self.stores.all():
            kind, part = store.resource.kind, store.part_of(NAMESPACE)
            entries = {entry.key: entry for entry in map(store.resource.entry, self.server.objects[kind].values())}
            self._heard[kind] = len(self.server.told[kind])
            part.end_list(part.begin_list(), entries, self.server.version)

    def tell(self, *kinds: str) -> None:
        """Deliver all events of these watches."""
        for store in self.stores.all():
            kind = store.resource.kind
            if kind in (kinds or self.server.objects):
                for event in self.server.told[kind][self._heard[kind] :]:
                    store.part_of(NAMESPACE).take(event)
                self._heard[kind] = len(self.server.told[kind])

    def make_a_pass(self) -> ReconcileResult:
        result: ReconcileResult = run(self._reconciler.reconcile(KEY))
        return result

    def fail_a_pass(self, *fates: Fate) -> None:
        """Run a reconcile whose writes end with these fates."""
        self.fates += fates
        with pytest.raises(ApiError):
            self.make_a_pass()

    @property
    def pods(self) -> int:
        return len(self.server.objects["Pod"])


@pytest.fixture
def process() -> Process:
    return Process()


def test_a_pod_is_made_once_however_late_its_event_comes(process: Process) -> None:
    process.make_a_pass()
    for _ in range(3):
        result = process.make_a_pass()
        assert (result.put_off, result.again) == (True, timedelta(seconds=PATIENCE_SECONDS))
    process.tell(KIND, "Service", "PodDisruptionBudget", "ControllerRevision")
    assert process.make_a_pass().put_off, "each cache counts"
    process.tell("Pod")
    assert not process.make_a_pass().put_off
    assert process.pods == 1
    assert process.server.objects[KIND]["a"]["status"]["replicas"] == 1


def test_a_pod_that_is_deleted_is_not_counted_again() -> None:
    process = Process(replicas=2)
    process.make_a_pass()
    process.tell()
    process.server.put(KIND, model_body("a", 1))
    process.tell()
    process.make_a_pass()
    assert process.pods == 1
    process.server.put(KIND, model_body("a", 2))
    process.tell(KIND)
    assert process.make_a_pass().put_off
    process.tell("Pod")
    process.make_a_pass()
    assert process.pods == 2


def test_after_a_lost_answer_the_one_object_is_asked_for(process: Process) -> None:
    process.fail_a_pass(Fate.WELL, Fate.WELL, Fate.LOST)
    assert process.pods == 1
    asked = len(process.api.asked)
    assert process.make_a_pass().put_off, "the cache does not show the pod yet"
    assert process.api.asked[asked:] == ["find Pod"]
    assert not process.stores.pods.part_of(NAMESPACE).outdated, "no list for one object"
    process.tell()
    process.make_a_pass()
    assert process.pods == 1


def test_nothing_is_made_until_the_server_says_what_it_has(process: Process) -> None:
    process.fail_a_pass(Fate.WELL, Fate.WELL, Fate.LOST)
    process.unreadable = True
    for _ in range(3):
        process.fail_a_pass()
    process.list()
    process.fail_a_pass()
    process.unreadable = False
    process.make_a_pass()
    assert process.pods == 1


def test_a_deletion_whose_answer_was_lost_is_waited_for(process: Process) -> None:
    settle(process)
    process.server.change(KIND, "a", lambda item: item["spec"].update(replicas=0))
    process.tell()
    process.fail_a_pass(Fate.LOST)
    assert process.pods == 0
    assert process.make_a_pass().put_off, "the cache still shows the pod"
    process.tell()
    assert not process.make_a_pass().put_off


def test_a_pod_that_is_made_late_between_question_and_second_try_is_asked_for(process: Process) -> None:
    process.fail_a_pass(Fate.WELL, Fate.WELL, Fate.LATE)
    process.list()
    process.as_a_pod_is_sent = process.server.late.pop()
    process.fail_a_pass()
    assert process.api.asked[-2:] == ["find Pod", "create Pod"]
    assert process.make_a_pass().put_off, "the name is taken, and the cache does not show by what"
    process.tell()
    process.make_a_pass()
    assert process.pods == 1


def test_a_list_that_began_before_is_no_answer(process: Process) -> None:
    process.make_a_pass()
    part = process.stores.pods.part_of(NAMESPACE)
    number = part.begin_list()
    process.now += PATIENCE_SECONDS
    assert process.make_a_pass().put_off
    part.end_list(number, {}, 2)
    assert part.outdated
    assert process.make_a_pass().put_off
    assert process.pods == 1


def test_a_pod_that_may_still_be_made_is_made_under_the_same_name(process: Process) -> None:
    process.fail_a_pass(Fate.WELL, Fate.WELL, Fate.LATE)
    process.list()
    process.make_a_pass()
    with pytest.raises(ApiError, match="it exists"):
        process.server.late.pop()()
    assert process.pods == 1


def test_a_pod_that_was_made_late_is_found(process: Process) -> None:
    process.fail_a_pass(Fate.WELL, Fate.WELL, Fate.LATE)
    process.list()
    process.server.late.pop()()
    assert process.make_a_pass().put_off
    process.tell()
    process.make_a_pass()
    assert process.pods == 1


def test_what_is_not_heard_of_for_long_is_listed(process: Process) -> None:
    process.make_a_pass()
    process.now += PATIENCE_SECONDS - 1
    assert process.make_a_pass().put_off
    assert not process.stores.pods.part_of(NAMESPACE).outdated
    process.now += 1
    assert process.make_a_pass().put_off, "time alone is no proof"
    assert process.stores.pods.part_of(NAMESPACE).outdated
    process.queue.added.clear()
    process.list()
    assert WHOLE in process.queue.added
    assert not process.make_a_pass().put_off
    assert process.pods == 1


def test_what_the_server_says_it_did_not_do_is_tried_again(process: Process) -> None:
    process.fail_a_pass(Fate.OVERLOADED)
    assert not process.stores.services.part_of(NAMESPACE).outdated
    process.make_a_pass()
    assert process.pods == 1


def test_a_status_that_a_pass_wrote_is_no_news(process: Process) -> None:
    process.make_a_pass()
    process.tell()
    process.queue.added.clear()
    process.make_a_pass()
    process.tell()
    assert process.queue.added == []
    asked = len(process.api.asked)
    assert process.make_a_pass() == ReconcileResult(again=timedelta(seconds=600)), "when its progress counts as stalled"
    assert process.api.asked[asked:] == [], "settled: no requests"


def test_a_status_that_somebody_else_wrote_is_put_right(process: Process) -> None:
    process.make_a_pass()
    process.tell()
    process.make_a_pass()
    process.tell()
    process.queue.added.clear()
    process.server.change(KIND, "a", lambda item: item["status"].update(phase="Ready"))
    process.tell()
    assert process.queue.added == [WHOLE]
    process.make_a_pass()
    assert process.server.objects[KIND]["a"]["status"]["phase"] == "Pending"


def test_a_pass_that_was_put_off_is_made_once_its_own_status_is_seen(process: Process) -> None:
    process.make_a_pass()
    process.tell()
    process.make_a_pass()
    process.queue.added.clear()
    assert process.make_a_pass().put_off
    process.tell()
    assert process.queue.added == [WHOLE]
    assert not process.make_a_pass().put_off


def test_a_status_is_not_written_by_what_was_read_before_it(process: Process) -> None:
    process.make_a_pass()
    process.tell()
    process.make_a_pass()
    asked = len(process.api.asked)
    assert process.make_a_pass().put_off
    assert process.api.asked[asked:] == []


def test_the_status_of_what_is_gone_is_asked_for_again_later(process: Process) -> None:
    process.make_a_pass()
    process.tell()
    process.server.remove(KIND, "a")
    with pytest.raises(ApiError) as raised:
        process.make_a_pass()
    assert raised.value.code == 404
    process.tell()
    assert process.make_a_pass().gone


def test_changes_that_concern_nothing_we_keep_wake_nobody(process: Process) -> None:
    process.make_a_pass()
    process.tell()
    process.make_a_pass()
    process.tell()
    process.queue.added.clear()
    (name,) = process.server.objects["Pod"]
    process.server.change("Pod", name, lambda pod: pod["metadata"].update(annotations={"a": "b"}))
    process.server.change(KIND, "a", lambda item: item["metadata"].update(managedFields=[{"manager": "kubectl"}]))
    process.tell()
    assert process.queue.added == []
    process.server.change("Pod", name, lambda pod: pod["spec"].update(nodeName="n1"))
    process.tell()
    assert process.queue.added == [WHOLE]


def test_what_is_gone_is_news_to_its_owner(process: Process) -> None:
    process.make_a_pass()
    process.tell()
    process.make_a_pass()
    process.tell()
    process.queue.added.clear()
    process.server.remove("Service", "a")
    (name,) = process.server.objects["Pod"]
    process.server.remove("Pod", name)
    process.tell()
    assert process.queue.added == [WHOLE, WHOLE]


def test_somebody_elses_service_is_asked_for_now_and_then(process: Process) -> None:
    """It lacks our labels, so no watch reports its deletion."""
    process.server.objects["Service"]["a"] = {
        "metadata": {"name": "a", "namespace": NAMESPACE, "uid": "theirs", "resourceVersion": "1"},
        "spec": {"ports": []},
    }
    assert process.make_a_pass().again == timedelta(seconds=1)
    process.tell("Pod", "PodDisruptionBudget", "ControllerRevision")
    result = process.make_a_pass()
    assert result.again == timedelta(seconds=60)
    conditions = process.server.objects[KIND]["a"]["status"]["conditions"]
    assert "ServiceNameTaken" in {condition["reason"] for condition in conditions}
    process.tell(KIND)
    process.make_a_pass()
    assert [process.api.asked.count(what) for what in ("create Service", "get Service", "apply Service")] == [1, 2, 0]
    process.server.objects["Service"].clear()
    process.make_a_pass()
    (made,) = process.server.objects["Service"].values()
    assert made["metadata"]["ownerReferences"][0]["uid"] == process.server.objects[KIND]["a"]["metadata"]["uid"]
    process.tell()
    process.make_a_pass()
    process.tell()
    asked = len(process.api.asked)
    process.make_a_pass()
    assert process.api.asked[asked:] == [], "it is ours, and watched"


def test_a_service_of_ours_that_has_lost_its_labels_gets_them_back(process: Process) -> None:
    """It is not watched without them: only its name is known to be taken."""
    process.make_a_pass()
    process.tell()
    process.make_a_pass()
    process.tell()
    process.server.change("Service", "a", lambda item: item["metadata"].update(labels={}))
    part = process.stores.services.part_of(NAMESPACE)
    part.end_list(part.begin_list(), {}, process.server.version)
    process.make_a_pass()
    process.make_a_pass()
    assert process.server.objects["Service"]["a"]["metadata"]["labels"]
    assert process.api.asked.count("apply Service") == 1


def test_a_revision_that_is_there_already_is_written_all_the_same(process: Process) -> None:
    settle(process)
    (before,) = process.server.objects["ControllerRevision"].values()
    process.server.change("ControllerRevision", before["metadata"]["name"], lambda item: item.update(revision=7))
    part = process.stores.revisions.part_of(NAMESPACE)
    part.end_list(part.begin_list(), {}, process.server.version)
    process.make_a_pass()
    (after,) = process.server.objects["ControllerRevision"].values()
    assert (after["revision"], after["metadata"]["uid"]) == (1, before["metadata"]["uid"])


@pytest.mark.parametrize("fate", [Fate.LOST, Fate.LATE])
@pytest.mark.parametrize("child", range(1, 4), ids=["revision", "service", "pod"])
def test_each_child_is_there_once_whatever_became_of_its_creation(process: Process, child: int, fate: Fate) -> None:
    process.fates = [*[Fate.WELL] * (child - 1), fate]
    with pytest.raises(ApiError):
        process.make_a_pass()
    for write in process.server.late:
        write()
    for _ in range(4):
        process.list()
        process.make_a_pass()
        process.tell()
    made = {kind: len(process.server.objects[kind]) for kind in CHILDREN}
    assert made == {"ControllerRevision": 1, "Service": 1, "Pod": 1, "PodDisruptionBudget": 0}
    asked = len(process.api.asked)
    process.make_a_pass()
    assert process.api.asked[asked:] == []


def settle(process: Process) -> None:
    process.make_a_pass()
    process.tell()
    process.make_a_pass()
    process.tell()
    assert not process.make_a_pass().put_off


def serve(process: Process) -> None:
    (name,) = process.server.objects["Pod"]
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    process.server.change("Pod", name, lambda pod: pod.update(spec={**pod["spec"], "nodeName": "n1"}, status=ready))
    process.tell("Pod")


def test_a_budget_is_made_before_the_status_says_that_a_pod_serves(process: Process) -> None:
    settle(process)
    assert not process.server.objects["PodDisruptionBudget"], "there is nothing to keep yet"
    serve(process)
    process.fates = [Fate.WELL, Fate.OVERLOADED]
    with pytest.raises(ApiError):
        process.make_a_pass()
    assert process.server.objects["PodDisruptionBudget"]["a"]["spec"]["minAvailable"] == 1
    assert process.server.objects[KIND]["a"]["status"]["readyReplicas"] == 0


@pytest.mark.parametrize("fate", [Fate.LOST, Fate.LATE])
def test_a_budget_is_there_once_whatever_became_of_its_creation(process: Process, fate: Fate) -> None:
    settle(process)
    serve(process)
    process.fates = [fate]
    with pytest.raises(ApiError):
        process.make_a_pass()
    for write in process.server.late:
        write()
    process.list()
    settle(process)
    assert len(process.server.objects["PodDisruptionBudget"]) == 1
    assert process.server.objects[KIND]["a"]["status"]["readyReplicas"] == 1


def test_a_budget_is_made_once_and_again_when_it_goes(process: Process) -> None:
    settle(process)
    serve(process)
    process.make_a_pass()
    process.tell(KIND)
    assert process.make_a_pass().put_off, "its budget has not been seen"
    process.queue.added.clear()
    process.tell("PodDisruptionBudget")
    assert process.queue.added == [WHOLE]
    process.make_a_pass()
    process.tell()
    assert [process.api.asked.count(what) for what in ("get PodDisruptionBudget", "create PodDisruptionBudget")] == [
        0,
        1,
    ]
    process.queue.added.clear()
    process.server.remove("PodDisruptionBudget", "a")
    process.tell()
    assert process.queue.added == [WHOLE]
    process.make_a_pass()
    assert process.api.asked.count("create PodDisruptionBudget") == 2


def test_somebody_elses_budget_is_asked_for_and_left(process: Process) -> None:
    process.server.objects["PodDisruptionBudget"]["a"] = {
        "metadata": {"name": "a", "namespace": NAMESPACE, "uid": "theirs", "resourceVersion": "1"},
        "spec": {"minAvailable": 7},
    }
    settle(process)
    serve(process)
    for _ in range(3):
        process.make_a_pass()
        process.tell(KIND)
    assert [process.api.asked.count(what) for what in ("create PodDisruptionBudget", "apply PodDisruptionBudget")] == [
        1,
        0,
    ]
    assert process.api.asked.count("get PodDisruptionBudget") == 2
    assert process.server.objects["PodDisruptionBudget"]["a"]["spec"] == {"minAvailable": 7}


def test_what_a_new_model_needs_is_made_by_one_request_each_and_told_in_one_event(process: Process) -> None:
    settle(process)
    assert process.api.asked == [
        "create ControllerRevision",
        "create Service",
        "create Pod",
        "create Event",
        "apply status",
    ]
    process.server.remove("Service", "a")
    process.tell()
    process.make_a_pass()
    assert process.api.events[-1][1] == "ServiceApplied", "a correction is an event"


def test_a_budget_that_cannot_be_made_keeps_no_status_from_being_written(process: Process) -> None:
    """For example, if a webhook for budgets is broken: the reconcile is retried, and the status shows that the model
    serves.
    """
    settle(process)
    serve(process)
    process.fates = [Fate.BROKEN]
    with pytest.raises(ApiError, match="webhook"):
        process.make_a_pass()
    assert process.server.objects[KIND]["a"]["status"]["readyReplicas"] == 1
    process.list()
    process.make_a_pass()
    assert len(process.server.objects["PodDisruptionBudget"]) == 1
