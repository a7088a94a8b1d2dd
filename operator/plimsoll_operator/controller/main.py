"""Runs the operator's process: kopf with our handlers, until a signal or the loss of the Lease."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import kopf
from prometheus_client import REGISTRY

from plimsoll_cluster.connection import Connection, NoClusterError, connect
from plimsoll_operator.build.host import HostKeyError
from plimsoll_operator.controller.controller import ENDS, controller_of
from plimsoll_operator.controller.options import Options, parse_options
from plimsoll_operator.handlers import register
from plimsoll_operator.kube.health import ListenError
from plimsoll_operator.kube.prerequisites import PrerequisiteError
from plimsoll_operator.pools.hosts.client import host_session
from plimsoll_telemetry.exporters import start_tracer
from plimsoll_telemetry.logs import begin_log
from plimsoll_telemetry.settings import TracingSettingsError, read_settings
from plimsoll_telemetry.tracer import Tracer

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal, and return 0. Return 1 if the operator cannot start (it prints why) or loses the Lease."""
    options = parse_options(arguments)
    begin_log(options.log_format, "operator", options.log_level)
    tracer: Tracer | None = None
    try:
        tracing = read_settings(os.environ, options.traces_per_second)
        tracer = start_tracer(tracing, "plimsoll-operator")
        if tracer is not None:
            REGISTRY.register(tracer)
        return asyncio.run(_run(options, tracer))
    except (NoClusterError, ListenError, HostKeyError, PrerequisiteError, TracingSettingsError) as error:
        print(f"plimsoll-operator: {error}", file=sys.stderr)  # noqa: T201
        return 1
    finally:
        if tracer is not None:
            tracer.close()


async def operate(
    options: Options,
    connection: Connection,
    stop: asyncio.Event,
    identities: tuple[str, str] | None = None,
    tracer: Tracer | None = None,
) -> int:
    """Run kopf until a signal, `stop`, or an error of the controller. Return the exit code: 0, or 1 after an error of
    `ENDS`. Raise any other error.
    """
    controller = controller_of(options, connection, on_end=stop.set, identities=identities, tracer=tracer)
    registry = kopf.OperatorRegistry()
    register(controller, connection, registry)
    try:
        await kopf.operator(
            registry=registry,
            clusterwide=options.namespaces is None,
            namespaces=options.namespaces or (),
            standalone=True,
            stop_flag=stop,
        )
    except Exception:
        if controller.end is None:
            raise
    finally:
        await controller.stop()  # kopf calls no cleanup handlers if its start did not finish.
    return _code_of(controller.end)


async def _run(options: Options, tracer: Tracer | None) -> int:
    async with await connect() as connection, _external_scaler(options):
        return await operate(options, connection, asyncio.Event(), tracer=tracer)


@asynccontextmanager
async def _external_scaler(options: Options) -> AsyncIterator[None]:
    port, gateways = options.external_scaler_port, options.gateways
    if port is None or gateways is None:
        yield
        return
    # Imported here because gRPC takes memory that is needed only with this option.
    from plimsoll_operator.scaling.keda.server import external_scaler

    async with host_session() as session, external_scaler(gateways, port, session):
        yield


def _code_of(end: BaseException | None) -> int:
    """Return the exit code: 0 without an error, 1 after errors of `ENDS`. Raise any other error."""
    if end is None:
        return 0
    if not isinstance(end, BaseExceptionGroup) or end.split(ENDS)[1] is not None:
        raise end
    logger.error("ending: %s", "; ".join(map(str, end.exceptions)))
    return 1


if __name__ == "__main__":
    sys.exit(main())
