"""What the application has for each path that needs models."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from plimsoll_runtime.api.http.record import RequestRecord
from plimsoll_runtime.api.table import ModelTable

Handler = Callable[[Request, ModelTable, RequestRecord], Awaitable[Response]]
Route = tuple[str, str, Handler]
"""Method, path and who answers."""
