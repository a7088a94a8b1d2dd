"""The operator's reconciler on a client that counts its requests, and that can be killed at any of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kubernetes.aio import client, config

from plimsoll_operator.api import Api
from plimsoll_operator.build.budget import Budgets
from plimsoll_operator.build.image import Image
from plimsoll_operator.identity import ObjectKey
from plimsoll_operator.names import NameRegistry
from plimsoll_operator.nodes import NodeRegistry
from plimsoll_operator.reconcile import Outcome, Reconciler
from plimsoll_operator.turns import Turns

IMAGE = Image("registry.example/runtime:1", allowed=("registry.example/ai",))
QUIET_PASSES = 12


class Killed(BaseException):
    """The process ends here, whatever it was about to do."""


class RecordingClient(client.ApiClient):
    """`changes` counts the writes that were carried out.

    `kill_after`: the write, counted from 1, after which the process ends without having seen the answer.
    """

    def __init__(self, settings: client.Configuration) -> None:
        super().__init__(settings)
        self.requests: list[tuple[str, str]] = []
        self.changes = 0
        self.kill_after: int | None = None

    @property
    def writes(self) -> list[tuple[str, str]]:
        return [(method, url) for method, url in self.requests if method != "GET"]

    async def call_api(self, method: str, url: str, *args: Any, **more: Any) -> Any:
        answer = await super().call_api(method, url, *args, **more)
        self.requests.append((method, url))
        self.changes += method != "GET" and answer.status < 300
        if method != "GET" and len(self.writes) == self.kill_after:
            answer.response.close()
            raise Killed
        return answer


async def connect(kubeconfig: Path) -> RecordingClient:
    """A client for a kubeconfig, to be used as a context."""
    settings = client.Configuration()
    await config.load_kube_config(config_file=str(kubeconfig), client_configuration=settings)  # type: ignore[no-untyped-call]
    return RecordingClient(settings)


class Operator:
    """One process of the operator, without watches: passes are made when the test says so."""

    def __init__(
        self,
        http: RecordingClient,
        *,
        image: Image = IMAGE,
        may_act: Callable[[], bool] = lambda: True,
        turns: Turns | None = None,
        budgets: Budgets = Budgets(),  # noqa: B008
    ) -> None:
        self.http = http
        self.woken: list[ObjectKey] = []
        self.names, self.nodes = NameRegistry(), NodeRegistry()
        self._reconciler = Reconciler(
            Api(http),
            image,
            self.names,
            self.nodes,
            turns or Turns(99),
            "test",
            may_act=may_act,
            wake=self.woken.append,
            budgets=budgets,
        )

    async def one_pass(self, key: ObjectKey) -> Outcome:
        return await self._reconciler.reconcile(key)

    async def until_quiet(self, key: ObjectKey) -> None:
        """Passes until one changes nothing."""
        for _ in range(QUIET_PASSES):
            before = self.http.changes
            await self.one_pass(key)
            if self.http.changes == before:
                return
        raise AssertionError(f"it never comes to rest: {self.http.writes[-8:]}")
