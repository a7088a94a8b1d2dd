"""Entry point of `python3 e2e/cluster VERB` and of `python3 -m cluster VERB` from e2e/."""

import sys
from pathlib import Path

if not __package__:
    # If started by path, Python puts this folder first, and our modules would be found as top-level ones.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from cluster.cli import main

sys.exit(main(sys.argv[1:]))
