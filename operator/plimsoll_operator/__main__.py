"""The command `plimsoll-operator`: runs the operator, or the subcommand `simulate` or `explain`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from plimsoll_operator.simulation.commands import COMMANDS, command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] and given[0] in COMMANDS:
        return command(given)
    # Imported here because the planner alone needs no Kubernetes client.
    from plimsoll_operator.controller.main import main as operate

    return operate(given)


if __name__ == "__main__":
    sys.exit(main())
