"""The gateway's process: starts the source of the routing table and the server, and runs until one of them ends."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import sys
from collections.abc import Sequence

from plimsoll_gateway.admission.limits import raise_open_files
from plimsoll_gateway.admission.quota_sync.sync import QuotaSync
from plimsoll_gateway.app import Gateway
from plimsoll_gateway.client.pool import Pool
from plimsoll_gateway.discovery.routing_table import TableStore
from plimsoll_gateway.discovery.table_file import TableFile
from plimsoll_gateway.keys.credential import Credential, CredentialError
from plimsoll_gateway.keys.key_folder import KeyFolder
from plimsoll_gateway.keys.keyring import Keyring
from plimsoll_gateway.routing.pick import Picker
from plimsoll_gateway.server.options import Options, Peers, parse_options
from plimsoll_gateway.server.server import GatewayServer, MetricsServer, listen
from plimsoll_telemetry.exporters import start_tracer
from plimsoll_telemetry.logs import begin_log
from plimsoll_telemetry.process_metrics import installed_version, process_collectors
from plimsoll_telemetry.settings import TracingSettingsError, read_settings
from plimsoll_telemetry.tracer import Tracer

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal. Exit code 0: orderly stop; 1: the gateway cannot start or continue."""
    options = parse_options(arguments)
    begin_log(options.log_format, "gateway", options.log_level)
    raise_open_files()
    try:
        tracing = read_settings(os.environ, options.traces_per_second)
        credential = None if options.gateway_token_file is None else Credential(options.gateway_token_file)
        keys = None if options.keys is None else KeyFolder(options.keys)
        quota_sync = None if options.peers is None or keys is None else _sharing(options.peers, keys)
        sock = socket.socket(fileno=options.fd) if options.fd is not None else _listen(options.host, options.port)
        metrics = None if options.metrics_port is None else _listen(options.host, options.metrics_port)
    except (CredentialError, CannotListenError, TracingSettingsError) as error:
        print(f"plimsoll-gateway: {error}", file=sys.stderr)  # noqa: T201
        return 1
    tracer = start_tracer(tracing, "plimsoll-gateway")
    try:
        return asyncio.run(_run(options, sock, metrics, keys, credential, quota_sync, tracer))
    finally:
        if tracer is not None:
            tracer.close()


def _sharing(peers: Peers, keys: KeyFolder) -> QuotaSync:
    secret = Credential(peers.secret_file, "--peer-secret-file")
    return QuotaSync(peers.own, peers.addresses, secret, keys, _listen(peers.own.host, peers.own.port))


class CannotListenError(Exception):
    """Listening on an address failed; the message has the address and the reason."""


def _listen(host: str, port: int) -> socket.socket:
    try:
        return listen(host, port)
    except OSError as error:
        raise CannotListenError(f"cannot listen on {host}:{port}: {error}") from error


async def _run(
    options: Options,
    sock: socket.socket,
    metrics: socket.socket | None,
    keys: KeyFolder | None,
    credential: Credential | None,
    quota_sync: QuotaSync | None,
    tracer: Tracer | None,
) -> int:
    store = TableStore()
    async with Pool() as pool:
        picker = Picker(first_turn=random.randrange(1 << 16))
        gateway = Gateway(
            pool,
            store,
            picker,
            options.limits,
            metrics_apart=metrics is not None,
            keyring=Keyring(keys),
            credential=credential,
            quotas=None if quota_sync is None else quota_sync.quotas,
            files_model=options.files_model,
            files_claim=options.files_claim,
            origins=options.origins,
            tracer=tracer,
            access_log=options.access_log,
        )
        for collector in process_collectors("gateway", installed_version()):
            gateway.publish(collector)
        tasks: dict[asyncio.Task[None], str] = {}
        if quota_sync is not None:
            gateway.publish(quota_sync.collector)
            tasks[asyncio.create_task(quota_sync.run())] = "sharing the limits of keys failed"
            await quota_sync.join()
        server = asyncio.create_task(GatewayServer(gateway, options.stop).run_on(sock))
        followed = {"following the routing table failed": _follow(options, store)}
        followed["probing replicas failed"] = gateway.watch_replicas()
        if keys is not None:
            followed["following the API keys failed"] = keys.follow()
        if credential is not None:
            followed["following the gateway's credential failed"] = credential.follow()
        tasks |= {asyncio.create_task(work): what for what, work in followed.items()}
        page = MetricsServer(gateway)
        scraped = asyncio.create_task(page.serve(sockets=[metrics])) if metrics is not None else None
        log.info("listening on %s", sock.getsockname())
        await asyncio.wait({server, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        # A gateway with a stale routing table would send requests to deleted pods: better to restart.
        for task, what in tasks.items():
            if task.done():
                log.error("%s: %s", what, task.exception(), exc_info=task.exception())
                return 1
            task.cancel()
        await asyncio.wait(tasks)
        await server
        if scraped is not None:
            page.should_exit = True
            gateway.operations.end()
            await scraped
    return 0


async def _follow(options: Options, store: TableStore) -> None:
    if options.table is not None:
        await TableFile(options.table, store).follow()
        return
    # Imported here: laptop mode has no Kubernetes client installed.
    from plimsoll_gateway.discovery.cluster_table import follow_cluster

    namespaces = None if options.namespaces is None else list(options.namespaces)
    await follow_cluster(namespaces, store, options.name_rules, options.name_record)
