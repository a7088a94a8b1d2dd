"""An operator that is killed anywhere: the next process reaches the same end.

A process remembers nothing, so a kill leaves only what the API server has: a kill between two writes is the same as one
right after the first of them, and a kill before the first write the same as no run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from operator_support.direct import Direct
from operator_support.objects import Json
from operator_support.recording import IMAGE, Killed, Operator, RecordingClient

from plimsoll_operator.build.image import Image
from plimsoll_operator.spec.identity import UID_LABEL, ObjectKey

NEWER = Image("registry.example/runtime:2")
REPLICAS = 2
CYCLES = 32


@dataclass
class Story:
    """An object is created, loads, and rolls to another image; each step runs until nothing changes."""

    http: RecordingClient
    direct: Direct
    key: ObjectKey
    size: int = 1
    most_live: int = 0
    killed: bool = False

    async def tell(self) -> None:
        """Run each reconcile in a new process: it remembers nothing, so killing one is like leaving a reconcile
        undone.
        """
        parallel = {"parallel": {"tensor": self.size, "pods": self.size}} if self.size > 1 else {}
        self.direct.create_model(
            self.key.name, {"model": {"source": "demo://gemma-3-270m"}, "replicas": REPLICAS, **parallel}
        )
        for image in (IMAGE, NEWER):
            await self._settle(image)

    async def _settle(self, image: Image) -> None:
        for _ in range(CYCLES):
            before = len(self.http.writes)
            try:
                await Operator(self.http, image=image).one_pass(self.key)
            except Killed:
                self.killed = True
                continue
            if any("/pods?" in url for _, url in self.http.writes[before:]):
                pods = self.direct.pods(self.key.name)
                self.most_live = max(self.most_live, sum("deletionTimestamp" not in pod["metadata"] for pod in pods))
            elif len(self.http.writes) == before and not self.direct.make_ready(self.key.name):
                return
        raise AssertionError(f"it does not come to rest: {self.http.requests[-10:]}")

    def forget(self) -> None:
        """Delete everything, as the cluster's controllers do with an object's children."""
        self.direct.delete_model(self.key.name)
        self.direct.delete_service(self.key.name)
        self.direct.delete_budget(self.key.name)
        for pod in self.direct.pods(self.key.name):
            self.direct.end(pod)

    def end(self) -> dict[str, Any]:
        """Return the final state without names and times."""
        model = self.direct.model(self.key.name)
        status, service, budget = model["status"], self.direct.service(self.key.name), self.direct.budget(self.key.name)
        uids = {service["spec"]["selector"].pop(UID_LABEL), budget["spec"]["selector"]["matchLabels"].pop(UID_LABEL)}
        assert uids == {model["metadata"]["uid"]}
        return {
            "pods": [_without_identity(pod) for pod in self.direct.pods(self.key.name)],
            "budget": budget["spec"],
            "service": {key: service["spec"][key] for key in ("selector", "ports")},
            "conditions": {c["type"]: (c["status"], c["reason"], c["message"]) for c in status.pop("conditions")},
            "groups": [{**group, "group": ""} for group in status.pop("groups", ())],
            **{key: value for key, value in status.items() if key not in ("selector", "servedNames")},
        }


def _without_identity(pod: Json) -> tuple[str, str, bool]:
    (container,) = pod["spec"]["containers"]
    return (container["image"], pod["status"]["phase"], "deletionTimestamp" in pod["metadata"])


@pytest.mark.long
@pytest.mark.parametrize("size", [1, 2])
async def test_killed_after_any_write(http: RecordingClient, direct: Direct, size: int) -> None:
    key = ObjectKey(direct.namespace, "m")
    whole = Story(http, direct, key, size)
    await whole.tell()
    writes, expected = len(http.writes), whole.end()
    assert [image for image, *_ in expected["pods"]] == [NEWER.reference] * REPLICAS * size
    assert whole.most_live == (REPLICAS + 1) * size
    for number in range(1, writes + 1):
        whole.forget()
        http.requests.clear()
        http.kill_after = number
        story = Story(http, direct, key, size)
        await story.tell()
        assert story.killed
        assert story.end() == expected, f"killed after write {number}"
        assert story.most_live <= (REPLICAS + 1) * size
