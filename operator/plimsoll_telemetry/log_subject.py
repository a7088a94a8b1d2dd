"""The request or the object that a task works on: log lines of the task carry its ids."""

from __future__ import annotations

from contextvars import ContextVar


class LogSubject:
    """The ids of a request, or of an object that is reconciled; empty fields are unknown.

    `model` is NAMESPACE/NAME of the ModelDeployment in gateway and operator, a served name in a runtime. `object` is
    kind, namespace and name. It refers to nothing else: a connection that a request opened keeps it.
    """

    __slots__ = ("model", "object", "request_id", "trace_id")

    def __init__(self, request_id: str = "", trace_id: str | None = None, model: str = "", object_: str = "") -> None:
        self.request_id = request_id
        self.trace_id = trace_id
        self.model = model
        self.object = object_

    def fields(self) -> dict[str, str]:
        """Return the known ids by the names that they have in a line."""
        known = {
            "request_id": self.request_id,
            "trace_id": self.trace_id,
            "model": self.model,
            "object": self.object,
        }
        return {name: value for name, value in known.items() if value}


SUBJECT: ContextVar[LogSubject | None] = ContextVar("plimsoll_log_subject", default=None)
"""The subject of the current task."""
