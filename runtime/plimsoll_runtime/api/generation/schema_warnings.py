"""Names what of a request's schemas its answer is not kept to, in the header of ignored fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from plimsoll_runtime.api.http.unknown_fields import with_more
from plimsoll_runtime.api.schemas.sampling import SamplingFields, invalid
from plimsoll_runtime.api.telemetry.request_record import RequestRecord
from plimsoll_runtime.engine.protocol.constraint import Constraint, ConstraintError
from plimsoll_runtime.structured.grammar import cautious, unenforced

MOST_TOLD = 32
_OUTPUTS = {"json": "structured_outputs.json", "tags": "structured_outputs.structural_tag"}
_LONGEST = 80


@dataclass(frozen=True, slots=True)
class EnforcedSchema:
    """What an answer is kept to, and the paths of what of its schemas it is not."""

    constraint: Constraint | None
    unenforced: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Fields:
    """What a client calls fields of its request: that of the answer's form, the schema of the tool of a name, how much
    to think, and how much to say.
    """

    form: str = "response_format.json_schema.schema"
    tool: str = "tools[{}].function.parameters"
    effort: str = "reasoning_effort"
    verbosity: str = "verbosity"

    def of_form(self, constraint: Constraint, field: str) -> Sequence[str]:
        """The paths of what a constraint, which the field has, says in vain. Raises ConstraintError for what is
        malformed.
        """
        if constraint.strict or constraint.kind not in ("json", "tags"):
            return ()
        return [path(self._where(constraint, field), pointer) for pointer in _pointers(constraint)]

    def instead_of_form(self, constraint: Constraint, field: str) -> Iterator[EnforcedSchema]:
        """What enforces less of a form that was found malformed in no way, for where the library refuses it."""
        where = self._where(constraint, field)
        with suppress(ConstraintError):  # of one that has become too long there is no other
            for other, left in cautious(constraint):
                yield EnforcedSchema(other, [path(where, each.pointer) for each in left[:MOST_TOLD]])

    def _where(self, constraint: Constraint, field: str) -> str:
        return _OUTPUTS.get(constraint.kind, "") if field == "structured_outputs" else self.form

    def of_tool(self, name: str, *, old: bool) -> str:
        """Where its schema stands; in the `old` fields OpenAI's clients had functions."""
        return f"functions[{name}].parameters" if old else self.tool.format(name)


CHAT = Fields()


def set_format_warnings(record: RequestRecord, body: SamplingFields, fields: Fields = CHAT) -> None:
    """Name what of a body's own form is not enforced. Raises ApiError for one that is malformed."""
    constraint = body.constraint()
    if constraint is None:
        return
    try:
        set_warnings(record, fields.of_form(constraint, body.constraint_field))
    except ConstraintError as error:
        raise invalid(body.constraint_field, str(error)) from error


def instead_of_form(body: SamplingFields, fields: Fields = CHAT) -> Iterator[EnforcedSchema]:
    """What else its answers may be kept to where the library refuses its own form."""
    constraint = body.constraint()
    if constraint is not None:
        yield from fields.instead_of_form(constraint, body.constraint_field)


def path(where: str, pointer: str) -> str:
    """That of a place in a field; a long one without its middle."""
    whole = where + pointer
    half = (_LONGEST - 3) // 2
    return whole if len(whole) <= _LONGEST else f"{whole[:half]}...{whole[-half:]}"


def set_warnings(record: RequestRecord, paths: Iterable[str]) -> None:
    """Put them into the answer's header."""
    record.ignored = with_more(record.ignored, paths)


@lru_cache(256)
def _pointers(constraint: Constraint) -> Sequence[str]:
    return [each.pointer for each in unenforced(constraint)[:MOST_TOLD]]
