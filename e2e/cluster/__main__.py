"""Entry point of `python3 e2e/cluster VERB` and of `python3 -m cluster VERB` from e2e/."""

import sys
from pathlib import Path

if not __package__:
    # Started by path: Python put this folder itself first, and would find our modules as top-level ones.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from cluster.cli import main

sys.exit(main(sys.argv[1:]))
