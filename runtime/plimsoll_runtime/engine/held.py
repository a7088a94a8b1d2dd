"""Requests that do not join the line yet, because their constraint is being compiled."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Protocol

from plimsoll_runtime.engine.constraint import Constraint, ConstraintError
from plimsoll_runtime.engine.messages import AddRequest, RequestOutput, Vocabulary
from plimsoll_runtime.errors import UsageError


class Compiler(Protocol):
    """Compiles constraints beside the engine."""

    def use(self, vocabulary: Vocabulary) -> None:
        """Compile for this vocabulary."""

    def prepare(self, constraint: Constraint) -> Future[Any]:
        """Begin to compile, unless that is done or under way; the future raises ConstraintError where it fails."""


class HeldRequests:
    """They join in the order in which their constraints are ready."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._held: dict[str, tuple[AddRequest, Future[Any]]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def use(self, vocabulary: Vocabulary) -> None:
        """Compile for this vocabulary."""
        self._compiler.use(vocabulary)

    def add(self, request: AddRequest) -> None:
        """Hold a request with a constraint. Raises UsageError for an id that is held."""
        assert request.params.constraint is not None
        if request.request_id in self._held:
            raise UsageError(f"request id {request.request_id!r} is in use; every request needs an id of its own")
        self._held[request.request_id] = request, self._compiler.prepare(request.params.constraint)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget requests; unknown ids are ignored."""
        for request_id in request_ids:
            self._held.pop(request_id, None)

    def take_ready(self) -> tuple[list[AddRequest], list[RequestOutput]]:
        """Those that can join the line, and what the others hear whose constraint cannot be compiled."""
        ready: list[AddRequest] = []
        failed: list[RequestOutput] = []
        for request, compiled in [held for held in self._held.values() if held[1].done()]:
            del self._held[request.request_id]
            try:
                compiled.result()
            except ConstraintError as error:
                failed.append(RequestOutput(request.request_id, finish_reason="error", error=f"the constraint {error}"))
            else:
                ready.append(request)
        return ready, failed

    def wait(self, seconds: float) -> None:
        """Return once one of them is ready, or after so many seconds."""
        wait([compiled for _, compiled in self._held.values()], seconds, FIRST_COMPLETED)
