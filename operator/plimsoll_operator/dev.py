r"""Runs the operator under `kopf run`, from a checkout, against the cluster of a kubeconfig.

    PLIMSOLL_OPERATOR_ARGS="--runtime-image plimsoll-runtime:dev --lease-namespace default" \
        kopf run -A -m plimsoll_operator.dev

The variable has the options of `plimsoll-operator`. Pass namespaces to both: `-n NAME` and `--namespace NAME`.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys

from plimsoll_cluster.connection import NoClusterError, connect
from plimsoll_operator.controller.controller import controller_of
from plimsoll_operator.controller.options import parse_options
from plimsoll_operator.handlers import register

VARIABLE = "PLIMSOLL_OPERATOR_ARGS"

try:
    connection = asyncio.run(connect())
except NoClusterError as error:
    sys.exit(f"plimsoll-operator: {error}")
controller = controller_of(
    parse_options(shlex.split(os.environ.get(VARIABLE, ""))),
    connection,
    on_end=lambda: signal.raise_signal(signal.SIGTERM),  # kopf's own command line has no other way to stop it
)
register(controller, connection)
