"""What faces clients, the same in a server of one model and in a host of many."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from prometheus_client.registry import Collector

from plimsoll_runtime.api.app import build_app
from plimsoll_runtime.api.batches.service import BatchService
from plimsoll_runtime.api.callers.gateways import Gateways
from plimsoll_runtime.api.callers.keys import ApiKeys
from plimsoll_runtime.api.callers.tenants import Tenants
from plimsoll_runtime.api.config import FrontConfig
from plimsoll_runtime.api.http.listening import HttpServer
from plimsoll_runtime.api.responses.keeper import Keeper
from plimsoll_runtime.api.state import Phase, ServerState
from plimsoll_runtime.api.table import ModelTable

logger = logging.getLogger(__name__)


class Front:
    """The server's state, the HTTP server of its application, and the batches that are worked on beside requests."""

    def __init__(self, config: FrontConfig, names: tuple[str, ...], collectors: Iterable[Collector] = ()) -> None:
        """`names` are those of the only model, none where there are several. `collectors` add to the metrics. Raises
        UsageError for options that cannot be used.
        """
        self.state = ServerState(
            names,
            ApiKeys(config.api_keys, config.api_key_file),
            Tenants(shared=config.share_prefix_cache),
            Gateways(config.gateway_tokens, config.gateway_token_file),
        )
        self._drain_seconds = config.drain_seconds
        self._batches = BatchService(config.batches)
        self.state.at_end(self._batches.stop)
        keeper = Keeper(config.response_bounds, config.response_store)
        collectors = (*collectors, self._batches.lines)
        app = build_app(self.state, collectors, keeper, self._batches.routes, config.body_limits)
        self.http = HttpServer(app, config.door)

    def ready(self, models: ModelTable) -> None:
        """There are models to ask."""
        self.state.ready(models)
        self._batches.start(models, lambda: self.state.in_flight)

    async def close(self) -> None:
        """No new requests, and no more lines of batches; those in flight go on."""
        self.state.phase = Phase.DRAINING
        await self._batches.stop()
        logger.info("draining: %d requests in flight, at most %gs", self.state.in_flight, self._drain_seconds)
