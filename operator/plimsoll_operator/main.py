"""The operator's process: wait for the Lease, then watch and reconcile until a signal or the loss of the Lease."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any

import aiohttp

from plimsoll_cluster.connect import NoClusterError, connect
from plimsoll_cluster.keys import Key
from plimsoll_cluster.source import follow
from plimsoll_operator.actor import NotLeaderError
from plimsoll_operator.api import Api
from plimsoll_operator.build.budget import Budgets
from plimsoll_operator.common import Common
from plimsoll_operator.expectations import Expectations
from plimsoll_operator.health import serve_health
from plimsoll_operator.identity import KIND, POOL_KIND, ObjectKey
from plimsoll_operator.kinds import Caches
from plimsoll_operator.lease import MARGIN, Lease, LeaseLostError
from plimsoll_operator.listening import ListenError
from plimsoll_operator.metrics import LEADER, LEADERLESS, UNFOLLOWED
from plimsoll_operator.names import NameRegistry
from plimsoll_operator.nodes import NodeRegistry
from plimsoll_operator.options import Options, parse_options
from plimsoll_operator.outcome import Outcome
from plimsoll_operator.outstanding import Outstanding
from plimsoll_operator.pools.book import HostPod
from plimsoll_operator.pools.client import HostClient, host_session, host_url
from plimsoll_operator.pools.host_key import HostKeyError, read_key
from plimsoll_operator.pools.pools import PLACEMENT, Pools
from plimsoll_operator.prerequisites import PrerequisiteError, await_prerequisites, may_see_namespaces, may_see_nodes
from plimsoll_operator.reconcile import Reconciler
from plimsoll_operator.scaling.poller import DemandPoller, connect_to
from plimsoll_operator.scaling.scaler import Scaler
from plimsoll_operator.sightings import sightings_of
from plimsoll_operator.turns import Turns
from plimsoll_operator.watch import wake
from plimsoll_operator.work import RESYNC_SECONDS, WORKERS, WorkQueue

logger = logging.getLogger(__name__)

STALE_SECONDS = 5 * RESYNC_SECONDS
LEADERLESS_SECONDS = 60.0
"""Three times what a Lease takes to expire: whoever sees no leader for so long sees that there is none."""
ENDS = (LeaseLostError, NotLeaderError)
"""What ends an operator for good: its pod is started again, and stands by."""
TROUBLED = 8
"""Failures in a row of a list or a watch: with their back-off, about a minute."""
Follow = Callable[..., Coroutine[Any, Any, None]]
"""Keeps the stores that it is given true, for ever."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal: 0. Without a cluster or what is needed of it, or once the Lease is lost: 1."""
    options = parse_options(arguments)
    logging.basicConfig(level=options.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        return asyncio.run(_run(options))
    except (NoClusterError, ListenError, HostKeyError, PrerequisiteError) as error:
        print(f"plimsoll-operator: {error}", file=sys.stderr)  # noqa: T201
        return 1


class Operator:
    """One process that is, or may become, the one that acts."""

    def __init__(
        self,
        options: Options,
        api: Api,
        follow: Follow,
        instance: str,
        identity: str,
        outstanding: Outstanding | None = None,
    ) -> None:
        """`outstanding`: what `api` writes just now; when this operator ends, that has ended before."""
        self._options = options
        self._api = api
        self._follow = follow
        self._instance = instance
        self._outstanding = outstanding or Outstanding(MARGIN)
        self._names = NameRegistry()
        self._nodes = NodeRegistry()
        self._host_key = read_key(options.host_keys) if options.host_keys is not None else None
        self._turns = Turns(options.max_rolling)
        self._queue = WorkQueue(first=frozenset({PLACEMENT, POOL_KIND}))
        self._acting = False
        self._able = False
        self._caches: Caches | None = None
        self.lease = Lease(api, options.lease, identity, deployment=options.deployment)
        LEADERLESS.set_function(lambda: self.lease.leaderless_seconds)

    def is_live(self) -> bool:
        """Standing by, or a pass has succeeded lately."""
        return not self._acting or time.monotonic() - self._queue.last_success < STALE_SECONDS

    def trouble(self) -> str:
        """Why nobody brings objects to their specs, "" while somebody does."""
        if not self._able:
            return "it is not known yet whether the operator can work here"
        seconds = self.lease.leaderless_seconds
        if seconds > LEADERLESS_SECONDS:
            return f"no operator has been seen to hold the Lease {self._options.lease} for {seconds:.0f} s"
        if troubles := self._caches.troubles(TROUBLED) if self._caches is not None else []:
            return f"changes are not heard of: {'; '.join(troubles)}"
        return "" if self.is_live() else "no pass has succeeded lately"

    async def run(self) -> None:
        """Wait for the Lease, then act for ever. What ends that is raised in a group; see ENDS.

        Raises PrerequisiteError where it could not act at all.
        """
        await await_prerequisites(self._api, self._options.namespaces, self._options.lease)
        self._able = True
        await self.lease.acquire()
        async with host_session() as session, self._outstanding, asyncio.TaskGroup() as group:
            group.create_task(self.lease.keep())
            # Only what is listed from now on is sure to show what the last holder wrote.
            caches = self._caches = Caches(
                self._options.namespaces,
                with_nodes=await may_see_nodes(self._api),
                with_namespaces=await may_see_namespaces(self._api),
            )
            UNFOLLOWED.set_function(lambda: len(caches.troubles()))
            common = self._common(caches)
            wake(caches, self._queue, common.expectations, self._nodes)
            pools = self._make_pools(common, session)
            scaler = Scaler(wake=self._wake)
            group.create_task(self._follow(*caches.all()))
            await caches.wait_synced()
            for model in caches.models:  # every claim to a name and every turn, before the first pass decides by them
                self._names.note(model.value)
                self._turns.learn(model.value)
            self._queue.last_success = time.monotonic()
            self._acting = True
            LEADER.set(1)
            reconciler = Reconciler(
                common,
                self._turns,
                wake=self._wake,
                pooled=pools.placer,
                scaler=scaler,
                sightings=sightings_of(scaler.book, time.time),
            )

            async def make_pass(key: Key) -> Outcome:
                return await (reconciler.reconcile(key.object) if key.kind == KIND else pools.reconcile(key))

            group.create_task(pools.run())
            group.create_task(scaler.run())
            if (gateways := self._options.gateways) is not None:
                asked = connect_to(session, gateways.port)
                group.create_task(DemandPoller(scaler.book, gateways, asked, clock=time.time).run())
            group.create_task(self._queue.resync())
            for _ in range(WORKERS):
                group.create_task(self._queue.work(make_pass))

    def _common(self, caches: Caches) -> Common:
        return Common(
            self._api,
            caches,
            Expectations(),
            self._options.image,
            self._names,
            self._nodes,
            self._instance,
            may_act=lambda: self.lease.held,
            budgets=Budgets(self._options.budgets, of_one=caches.nodes is not None),
            remote_code=self._options.remote_code,
        )

    def _make_pools(self, common: Common, session: aiohttp.ClientSession) -> Pools:
        host_key = self._host_key

        def connect_to(pod: HostPod) -> HostClient:
            token = host_key.token(pod.pool) if host_key is not None else ""
            return HostClient(session, host_url(pod.address), token, self._outstanding)

        return Pools(common, Turns(self._options.max_rolling), host_key=host_key, connect=connect_to, queue=self._queue)

    def _wake(self, key: ObjectKey) -> None:
        self._queue.add(key.of(KIND))


def _identities() -> tuple[str, str]:
    """Our name in events, and in the Lease: a pod's name is its own, so that a restarted container goes on at once."""
    pod = os.environ.get("POD_NAME")
    host = socket.gethostname()
    return (pod, pod) if pod else (host, f"{host}_{uuid.uuid4().hex[:8]}")


async def _run(options: Options) -> int:
    loop = asyncio.get_running_loop()
    async with await connect() as connection, _external_scaler(options):
        outstanding = Outstanding(MARGIN)
        api = Api(connection, outstanding)
        operator = Operator(options, api, partial(follow, connection), *_identities(), outstanding)
        health = await serve_health(options.health_port, operator.is_live, operator.trouble)
        task = asyncio.create_task(operator.run())
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        try:
            return await _end_of(task)
        finally:
            await operator.lease.release()
            await health.cleanup()


def _external_scaler(options: Options) -> AbstractAsyncContextManager[object]:
    port, gateways = options.external_scaler_port, options.gateways
    if port is None or gateways is None:
        return nullcontext()
    # Imported here: gRPC takes memory, which only those need who want it.
    from plimsoll_operator.external.run import external_scaler

    return external_scaler(gateways, port)


async def _end_of(task: asyncio.Task[None]) -> int:
    """Wait for it: 0 after a signal, 1 after one of ENDS, and what is neither is raised."""
    try:
        await task
    except asyncio.CancelledError:
        logger.info("stopping")
        return 0
    except ExceptionGroup as group:
        _, others = group.split(ENDS)
        if others is not None:
            raise
        logger.error("ending: %s", "; ".join(map(str, group.exceptions)))
    return 1


if __name__ == "__main__":
    sys.exit(main())
