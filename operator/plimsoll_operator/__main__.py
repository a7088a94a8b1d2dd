"""`python -m plimsoll_operator`: the operator, or, with `simulate` or `explain` first, its planner alone."""

import sys

from plimsoll_operator.commands import COMMANDS, command
from plimsoll_operator.main import main

sys.exit(command(sys.argv[1:]) if sys.argv[1:2] and sys.argv[1] in COMMANDS else main())
