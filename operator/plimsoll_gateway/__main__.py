"""`python -m plimsoll_gateway`: the same as the command plimsoll-gateway."""

import sys

from plimsoll_gateway.main import main

sys.exit(main())
