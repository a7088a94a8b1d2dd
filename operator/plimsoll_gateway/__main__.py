"""`python -m plimsoll_gateway` runs the command plimsoll-gateway."""

import sys

from plimsoll_gateway.server.main import main

sys.exit(main())
