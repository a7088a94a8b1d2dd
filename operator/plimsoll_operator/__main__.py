"""`python -m plimsoll_operator`."""

import sys

from plimsoll_operator.main import main

sys.exit(main())
