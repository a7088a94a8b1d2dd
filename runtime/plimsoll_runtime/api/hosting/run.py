"""From options to a host that serves, and back to an exit code."""

from __future__ import annotations

import asyncio

from plimsoll_runtime.api.hosting.config import HostConfig
from plimsoll_runtime.api.hosting.server import HostServer
from plimsoll_runtime.api.http.listening import listen
from plimsoll_runtime.api.http.logs import begin_log
from plimsoll_runtime.residency.engines.processes import Processes
from plimsoll_runtime.residency.host import Host
from plimsoll_runtime.residency.settings import Settings
from plimsoll_runtime.utils.process_exit import write_last_words


def serve_host(config: HostConfig, settings: Settings) -> int:
    """Serve until a signal ends it (0 after a drain, 130 at once). Raises PlimsollError on a fatal error."""
    begin_log(config.door.log_format)
    try:
        return asyncio.run(_serve(config, settings))
    except Exception as error:
        write_last_words(config.termination_log, error)
        raise


async def _serve(config: HostConfig, settings: Settings) -> int:
    inner = (config.host_address, config.host_port, "--host-address or --host-port")
    with listen(config.host, config.port) as one, listen(*inner) as other:
        return await HostServer(config, (one, other), Host(Processes(device=settings.device), settings)).run()
