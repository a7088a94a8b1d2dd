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
from collections.abc import Callable, Sequence

from plimsoll_operator.api import Api, ApiError, NoClusterError, connect
from plimsoll_operator.build.budget import Budgets
from plimsoll_operator.health import HealthError, serve_health
from plimsoll_operator.identity import key_of
from plimsoll_operator.lease import Lease, LeaseLostError
from plimsoll_operator.metrics import LEADER, LEADERLESS
from plimsoll_operator.names import NameRegistry
from plimsoll_operator.nodes import NodeRegistry
from plimsoll_operator.options import Options, parse_options
from plimsoll_operator.prerequisites import PrerequisiteError, await_prerequisites, may_see_nodes
from plimsoll_operator.reconcile import NotLeaderError, Reconciler
from plimsoll_operator.turns import Turns
from plimsoll_operator.watch import WatchError, watch
from plimsoll_operator.work import RESYNC_SECONDS, WORKERS, WorkQueue

logger = logging.getLogger(__name__)

STALE_SECONDS = 5 * RESYNC_SECONDS
RETRY_SECONDS = 2.0
LEADERLESS_SECONDS = 60.0
"""Three times what a Lease takes to expire: whoever sees no leader for so long sees that there is none."""
ENDS = (LeaseLostError, NotLeaderError, WatchError)
"""What ends an operator for good: its pod is started again, and stands by."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal: 0. Without a cluster or what is needed of it, or once the Lease or the watch is lost: 1."""
    options = parse_options(arguments)
    logging.basicConfig(level=options.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kopf").setLevel(logging.WARNING)
    try:
        return asyncio.run(_run(options))
    except (NoClusterError, HealthError, PrerequisiteError) as error:
        print(f"plimsoll-operator: {error}", file=sys.stderr)  # noqa: T201
        return 1


class Operator:
    """One process that is, or may become, the one that acts."""

    def __init__(self, options: Options, api: Api, instance: str, identity: str) -> None:
        self._options = options
        self._api = api
        self._instance = instance
        self._names = NameRegistry()
        self._nodes = NodeRegistry()
        self._turns = Turns(options.max_rolling)
        self._queue = WorkQueue()
        self._acting = False
        self._able = False
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
        return "" if self.is_live() else "no pass has succeeded lately"

    async def run(self, arm_signals: Callable[[], None]) -> None:
        """Wait for the Lease, then act for ever. What ends that is raised in a group; see ENDS.

        Raises PrerequisiteError where it could not act at all.
        """
        await await_prerequisites(self._api, self._options.namespaces, self._options.lease)
        self._able = True
        await self.lease.acquire()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.lease.keep())
            await self._learn_names()
            self._queue.last_success = time.monotonic()
            self._acting = True
            LEADER.set(1)
            nodes = self._nodes if await may_see_nodes(self._api) else None
            reconciler = Reconciler(
                self._api,
                self._options.image,
                self._names,
                self._nodes,
                self._turns,
                self._instance,
                may_act=lambda: self.lease.held,
                wake=self._queue.add,
                budgets=Budgets(self._options.budgets, of_one=nodes is not None),
            )
            group.create_task(self._queue.resync())
            for _ in range(WORKERS):
                group.create_task(self._queue.work(reconciler.reconcile))
            group.create_task(watch(self._api, self._queue, self._options.namespaces, arm_signals, nodes))

    async def _learn_names(self) -> None:
        """Know every claim to a name before the first pass decides by them."""
        unknown: list[str | None] = list(self._options.namespaces or (None,))
        while True:
            unknown = [namespace for namespace in unknown if not await self._learn_names_of(namespace)]
            if not unknown:
                return
            await asyncio.sleep(RETRY_SECONDS)

    async def _learn_names_of(self, namespace: str | None) -> bool:
        try:
            if not await self._api.serves_models():
                logger.warning("the API server does not know ModelDeployments: apply the crds/ of this release")
                return False
            items = await self._api.models(namespace)
        except ApiError as error:
            logger.warning("ModelDeployments cannot be listed: %s", error)
            return False
        for item in items:
            self._names.note(item)
            self._turns.learn(item)
            self._queue.add(key_of(item))
        return True


def _identities() -> tuple[str, str]:
    """Our name in events, and in the Lease: a pod's name is its own, so that a restarted container goes on at once."""
    pod = os.environ.get("POD_NAME")
    host = socket.gethostname()
    return (pod, pod) if pod else (host, f"{host}_{uuid.uuid4().hex[:8]}")


async def _run(options: Options) -> int:
    loop = asyncio.get_running_loop()
    async with await connect() as client:
        operator = Operator(options, Api(client), *_identities())
        health = await serve_health(options.health_port, operator.is_live, operator.trouble)

        def arm_signals() -> None:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, task.cancel)

        task = asyncio.create_task(operator.run(arm_signals))
        arm_signals()
        try:
            return await _end_of(task)
        finally:
            await operator.lease.release()
            await health.cleanup()


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
