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
from collections.abc import Sequence

import kopf

from plimsoll_operator.api import Api, ApiError, NoClusterError, connect
from plimsoll_operator.handlers import make_registry, make_settings
from plimsoll_operator.health import serve_health
from plimsoll_operator.identity import key_of
from plimsoll_operator.lease import Lease, LeaseLostError
from plimsoll_operator.metrics import LEADER
from plimsoll_operator.names import NameRegistry
from plimsoll_operator.options import Options, parse_options
from plimsoll_operator.reconcile import NotLeaderError, Reconciler
from plimsoll_operator.work import RESYNC_SECONDS, WORKERS, WorkQueue

logger = logging.getLogger(__name__)

STALE_SECONDS = 5 * RESYNC_SECONDS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal: 0. Without a cluster, or once the Lease is lost: 1."""
    options = parse_options(arguments)
    logging.basicConfig(level=options.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kopf").setLevel(logging.WARNING)
    try:
        return asyncio.run(_run(options))
    except NoClusterError as error:
        print(f"plimsoll-operator: {error}", file=sys.stderr)  # noqa: T201
        return 1


class StoppedError(Exception):
    """A signal asked the process to end."""


class Operator:
    """One process that is, or may become, the one that acts."""

    def __init__(self, options: Options, api: Api) -> None:
        self._options = options
        self._api = api
        self._names = NameRegistry()
        self._queue = WorkQueue()
        self._instance = f"{os.environ.get('POD_NAME') or socket.gethostname()}"
        self.lease = Lease(api, options.lease, f"{self._instance}_{uuid.uuid4().hex[:8]}")
        self._acting = False

    def is_live(self) -> bool:
        """Standing by, or a pass has succeeded lately."""
        return not self._acting or time.monotonic() - self._queue.last_success < STALE_SECONDS

    async def run(self) -> None:
        """Wait for the Lease, then act for ever. Raises LeaseLostError or NotLeaderError."""
        await self.lease.acquire()
        await self._learn_names()
        self._queue.last_success = time.monotonic()
        self._acting = True
        LEADER.set(1)
        reconciler = Reconciler(
            self._api, self._options.image, self._names, self._instance, may_act=lambda: self.lease.held
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(self.lease.keep())
            group.create_task(self._watch())
            group.create_task(self._queue.resync())
            for _ in range(WORKERS):
                group.create_task(self._queue.work(reconciler.reconcile))

    async def _learn_names(self) -> None:
        """Know every claim to a name before the first pass decides by them."""
        for namespace in self._options.namespaces or (None,):
            while True:
                try:
                    for item in await self._api.models(namespace):
                        self._names.note(item)
                        self._queue.known.add(key_of(item))
                    break
                except ApiError as error:
                    hint = " (is the ModelDeployment definition installed?)" if error.code == 404 else ""
                    logger.warning("ModelDeployments cannot be listed: %s%s", error, hint)
                    await asyncio.sleep(2)

    async def _watch(self) -> None:
        namespaces = self._options.namespaces
        await kopf.operator(
            registry=make_registry(self._queue, self._names),
            settings=make_settings(),
            namespaces=list(namespaces or ()),
            clusterwide=namespaces is None,
            standalone=True,
        )
        raise StoppedError  # kopf takes SIGTERM and SIGINT, and returns


async def _run(options: Options) -> int:
    async with await connect() as client:
        operator = Operator(options, Api(client))
        health = await serve_health(options.health_port, operator.is_live, lambda: True)
        task = asyncio.create_task(operator.run())
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        try:
            await task
        except asyncio.CancelledError:
            logger.info("stopping")
            return 0
        except ExceptionGroup as group:
            return _exit_code(group)
        finally:
            await operator.lease.release()
            await health.cleanup()
    return 1


def _exit_code(group: ExceptionGroup) -> int:
    """0 after a signal, 1 once the Lease is lost. Raises what is neither."""
    _, failures = group.split(StoppedError)
    if failures is None:
        logger.info("stopping")
        return 0
    lost, others = failures.split((LeaseLostError, NotLeaderError))
    if others is not None:
        raise others
    logger.error("ending, so that only one operator acts: %s", lost)
    return 1


if __name__ == "__main__":
    sys.exit(main())
