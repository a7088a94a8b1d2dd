"""The operator's reconciler with a client that counts its requests, and that can be killed at any of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kubernetes.aio import client, config
from operator_support.passes import NoPools

from plimsoll_cluster.connection import NOTHING, Connection
from plimsoll_cluster.kubernetes_source import KubernetesSource
from plimsoll_operator.build.disruption_budget import Budgets
from plimsoll_operator.build.image import Image
from plimsoll_operator.controller.model_reconciler import ModelReconciler
from plimsoll_operator.kube.api import Api
from plimsoll_operator.kube.context import ReconcileContext
from plimsoll_operator.kube.expectations import Expectations
from plimsoll_operator.kube.result import ReconcileResult
from plimsoll_operator.kube.served_names import NameRegistry
from plimsoll_operator.kube.stores import Stores
from plimsoll_operator.planning.nodes import NodeRegistry
from plimsoll_operator.planning.upgrade_queue import UpgradeQueue
from plimsoll_operator.spec.identity import ObjectKey
from plimsoll_operator.spec.profiles import NO_PROFILES, Profiles

IMAGE = Image("registry.example/runtime:1", allowed=("registry.example/ai",))
QUIET_PASSES = 12


class Killed(BaseException):
    """The process ends here."""


class RecordingClient(Connection):
    """`changes` counts the executed writes.

    `kill_after`: the write, counted from 1, after which the process ends without its response.
    """

    def __init__(self, settings: client.Configuration) -> None:
        super().__init__(settings)
        self.requests: list[tuple[str, str]] = []
        self.changes = 0
        self.kill_after: int | None = None

    @property
    def writes(self) -> list[tuple[str, str]]:
        return [(method, url) for method, url in self.requests if method != "GET"]

    async def ask(self, method: str, path: str, query: Any = NOTHING, *args: Any, **more: Any) -> Any:
        answer = await super().ask(method, path, query, *args, **more)
        self.requests.append((method, str(answer.request_info.url)))
        self.changes += method != "GET" and answer.status < 300
        if method != "GET" and len(self.writes) == self.kill_after:
            answer.close()
            raise Killed
        return answer


async def connect(kubeconfig: Path) -> RecordingClient:
    """Return a client for a kubeconfig, as a context."""
    settings = client.Configuration()
    await config.load_kube_config(config_file=str(kubeconfig), client_configuration=settings)  # type: ignore[no-untyped-call]
    return RecordingClient(settings)


class Operator:
    """One operator process without watches: the test starts each reconcile, after a new list.

    `http.requests` has the requests of reconciles, without the lists before them.
    """

    def __init__(
        self,
        http: RecordingClient,
        *,
        image: Image = IMAGE,
        may_act: Callable[[], bool] = lambda: True,
        upgrades: UpgradeQueue | None = None,
        budgets: Budgets = Budgets(),  # noqa: B008
        profiles: Profiles = NO_PROFILES,
    ) -> None:
        self.http = http
        self.woken: list[ObjectKey] = []
        self.names, self.nodes = NameRegistry(), NodeRegistry()
        self._upgrades, self._budgets = upgrades or UpgradeQueue(99), budgets
        self._reconcilers: dict[str, tuple[Stores, ModelReconciler]] = {}
        self._image, self._may_act, self._profiles = image, may_act, profiles

    async def one_pass(self, key: ObjectKey) -> ReconcileResult:
        stores, reconciler = self._of(key.namespace)
        await self._list(stores)
        result = await reconciler.reconcile(key)
        assert not result.put_off, "a list shows all that was written before it"
        return result

    def _of(self, namespace: str) -> tuple[Stores, ModelReconciler]:
        """Return the reconciler for a namespace: each test has its own, and lists no other's objects."""
        if namespace not in self._reconcilers:
            stores = Stores([namespace])
            self.names.follow(stores.models, self.woken.append)
            context = ReconcileContext(
                Api(self.http),
                stores,
                Expectations(),
                self._image,
                self.names,
                self.nodes,
                "test",
                may_act=self._may_act,
                budgets=self._budgets,
                profiles=self._profiles,
            )
            reconciler = ModelReconciler(context, self._upgrades, wake=self.woken.append, placed_models=NoPools())
            self._reconcilers[namespace] = (stores, reconciler)
        return self._reconcilers[namespace]

    async def _list(self, stores: Stores) -> None:
        counted = len(self.http.requests)
        for store in stores.all():
            for part in store.parts.values():
                source = KubernetesSource(self.http, store.resource, part.namespace)
                number, entries, version = part.begin_list(), {}, 0
                async for page in source.list():
                    version = version or page.version
                    entries.update({entry.key: entry for entry in map(store.resource.entry, page.items)})
                part.end_list(number, entries, version)
        del self.http.requests[counted:]

    async def until_quiet(self, key: ObjectKey) -> None:
        """Reconcile until nothing changes."""
        for _ in range(QUIET_PASSES):
            before = self.http.changes
            await self.one_pass(key)
            if self.http.changes == before:
                return
        raise AssertionError(f"it never comes to rest: {self.http.writes[-8:]}")
