"""What every bench does when it is run by itself: measure, print its table, leave its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import options
import tables
from options import Options
from tables import Sheet

Result = dict[str, Any]


def main(doc: str | None, measure: Callable[[Options], Result], table: Callable[[Result], Sheet]) -> int:
    """The exit status. `doc` is what `--help` says."""
    chosen = options.from_arguments(options.parser(doc).parse_args())
    result = measure(chosen)
    tables.console().print(table(result).rich())
    options.write(chosen, result)
    return 0
