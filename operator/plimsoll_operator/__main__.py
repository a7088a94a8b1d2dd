"""`python -m plimsoll_operator`: the same as `plimsoll-operator`."""

import sys

from plimsoll_operator.entry import main

if __name__ == "__main__":
    sys.exit(main())
