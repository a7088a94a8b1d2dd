"""`python -m plimsoll_runtime` is the `plimsoll` command."""

import sys

from plimsoll_runtime.cli.entry import main

sys.exit(main())
