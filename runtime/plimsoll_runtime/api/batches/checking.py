"""Whether a file is a batch, looked at before its first line is asked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from plimsoll_runtime.api.batches.line import Terms, read_form
from plimsoll_runtime.api.batches.records import BatchFault
from plimsoll_runtime.api.http.errors import ApiError
from plimsoll_runtime.batch.job import Row

MAX_LINES = 50_000
"""As many as OpenAI takes. `plimsoll batch` has no bound."""
MAX_FAULTS = 20


@dataclass(frozen=True, slots=True)
class Checked:
    """What a file has: its lines, the model that all of them ask, and the first things that are wrong with them."""

    lines: int
    model: str | None
    faults: list[BatchFault]


def check_lines(rows: Iterable[Row], terms: Terms) -> Checked:
    """Look at every line. What is wrong with a request itself is for its answer to say; here it is about the file."""
    faults: list[BatchFault] = []
    seen: set[str] = set()
    lines, model = 0, None
    for row in rows:
        lines += 1
        if lines > MAX_LINES:
            faults.append(BatchFault("too_many_tasks", f"The file has more than {MAX_LINES} lines.", line=row.line))
            break
        fault, asked = _fault(row, terms, seen)
        model = model or asked
        if fault is None and asked != model:
            message = f"This line asks '{asked}' and the first one '{model}'; a batch is for one model."
            fault = BatchFault("mismatched_model", message, "body.model", row.line)
        if fault is not None:
            faults.append(fault)
            if len(faults) == MAX_FAULTS:
                break
    if not lines:
        faults.append(BatchFault("empty_file", "The file has no lines.", "input_file_id"))
    return Checked(lines, model, faults)


def _fault(row: Row, terms: Terms, seen: set[str]) -> tuple[BatchFault | None, str | None]:
    """What is wrong with a line's form, and the model that it asks."""
    try:
        form = read_form(row, terms)
    except ApiError as error:
        return BatchFault(error.code or "invalid_line", error.message, error.param, row.line), None
    if form.custom_id in seen:
        message = f"The custom_id '{form.custom_id}' stands in the file before."
        return BatchFault("duplicate_custom_id", message, "custom_id", row.line), None
    seen.add(form.custom_id)
    return None, form.model
