"""The operator's reconciler on a client that counts its requests, and that can be killed at any of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kubernetes.aio import client, config

from plimsoll_operator.api import Api
from plimsoll_operator.build.pod import Image
from plimsoll_operator.identity import ObjectKey
from plimsoll_operator.names import NameRegistry
from plimsoll_operator.reconcile import Outcome, Reconciler

IMAGE = Image("registry.example/runtime:1")
QUIET_PASSES = 12


class Killed(BaseException):
    """The process ends here, whatever it was about to do."""


class RecordingClient(client.ApiClient):
    """`kill_at`: the request at which it ends, counted from 1; `after` it was carried out, or before."""

    def __init__(self, settings: client.Configuration) -> None:
        super().__init__(settings)
        self.requests: list[tuple[str, str]] = []
        self.kill_at: int | None = None
        self.after = False

    @property
    def writes(self) -> list[tuple[str, str]]:
        return [(method, url) for method, url in self.requests if method != "GET"]

    async def call_api(self, method: str, url: str, *args: Any, **more: Any) -> Any:
        self.requests.append((method, url))
        dies = len(self.requests) == self.kill_at
        if dies and not self.after:
            raise Killed
        answer = await super().call_api(method, url, *args, **more)
        if dies:
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
        self, http: RecordingClient, *, image: Image = IMAGE, may_act: Callable[[], bool] = lambda: True
    ) -> None:
        self.http = http
        self.woken: list[ObjectKey] = []
        self.names = NameRegistry()
        self._reconciler = Reconciler(Api(http), image, self.names, "test", may_act=may_act, wake=self.woken.append)

    async def one_pass(self, key: ObjectKey) -> Outcome:
        return await self._reconciler.reconcile(key)

    async def until_quiet(self, key: ObjectKey) -> None:
        """Passes until one changes nothing."""
        for _ in range(QUIET_PASSES):
            before = len(self.http.writes)
            await self.one_pass(key)
            if len(self.http.writes) == before:
                return
        raise AssertionError(f"it never comes to rest: {self.http.writes[-8:]}")
