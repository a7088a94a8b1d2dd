"""Names the parts of a request's schemas that are not enforced, in the header of ignored fields."""

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
    """A constraint for the output, and the paths of the parts of its schemas that it does not enforce."""

    constraint: Constraint | None
    unenforced: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Fields:
    """The paths, in a client's request, of the output's schema, of a tool's schema ({} stands for the tool's name), of
    the reasoning effort and of the verbosity."""

    form: str = "response_format.json_schema.schema"
    tool: str = "tools[{}].function.parameters"
    effort: str = "reasoning_effort"
    verbosity: str = "verbosity"

    def of_form(self, constraint: Constraint, field: str) -> Sequence[str]:
        """Return the paths of a constraint's parts that are not enforced; none for a strict constraint. `field` is the
        body's field with the constraint. Raises ConstraintError for malformed constraints."""
        if constraint.strict or constraint.kind not in ("json", "tags"):
            return ()
        return [path(self._where(constraint, field), pointer) for pointer in _pointers(constraint)]

    def instead_of_form(self, constraint: Constraint, field: str) -> Iterator[EnforcedSchema]:
        """Yield constraints weaker than this well-formed one, to try in turn if the grammar library refuses it."""
        where = self._where(constraint, field)
        with suppress(ConstraintError):  # there is no weaker constraint if it has become too long
            for other, left in cautious(constraint):
                yield EnforcedSchema(other, [path(where, each.pointer) for each in left[:MOST_TOLD]])

    def _where(self, constraint: Constraint, field: str) -> str:
        return _OUTPUTS.get(constraint.kind, "") if field == "structured_outputs" else self.form

    def of_tool(self, name: str, *, old: bool) -> str:
        """Return the path of a tool's schema; `old` is OpenAI's deprecated field `functions`."""
        return f"functions[{name}].parameters" if old else self.tool.format(name)


CHAT = Fields()


def set_format_warnings(record: RequestRecord, body: SamplingFields, fields: Fields = CHAT) -> None:
    """Record the parts of a body's own constraint that are not enforced. Raises ApiError for a malformed constraint."""
    constraint = body.constraint()
    if constraint is None:
        return
    try:
        set_warnings(record, fields.of_form(constraint, body.constraint_field))
    except ConstraintError as error:
        raise invalid(body.constraint_field, str(error)) from error


def instead_of_form(body: SamplingFields, fields: Fields = CHAT) -> Iterator[EnforcedSchema]:
    """Yield constraints weaker than the body's own, to try in turn if the grammar library refuses it."""
    constraint = body.constraint()
    if constraint is not None:
        yield from fields.instead_of_form(constraint, body.constraint_field)


def path(where: str, pointer: str) -> str:
    """Return a field's path followed by a JSON pointer; above 80 characters its middle is left out."""
    whole = where + pointer
    half = (_LONGEST - 3) // 2
    return whole if len(whole) <= _LONGEST else f"{whole[:half]}...{whole[-half:]}"


def set_warnings(record: RequestRecord, paths: Iterable[str]) -> None:
    """Add paths to the header of ignored fields."""
    record.ignored = with_more(record.ignored, paths)


@lru_cache(256)
def _pointers(constraint: Constraint) -> Sequence[str]:
    return [each.pointer for each in unenforced(constraint)[:MOST_TOLD]]
