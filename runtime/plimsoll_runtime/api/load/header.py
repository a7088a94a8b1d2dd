"""How busy the server is, in a header of each answer: what a gateway needs in order to choose among several.

An answer goes to the gateway anyway, so this costs no request of its own, and it is as fresh as the traffic is dense.
"""

from __future__ import annotations

from plimsoll_runtime.api.served import ServedModel

LOAD_HEADER = "x-plimsoll-load"


def load_of(model: ServedModel) -> str:
    """Sequences in the batch and waiting, how many a batch may have, and the share of the KV cache in use.

    As `running=3, waiting=0, slots=128, kv=0.25`. `slots` is left out where the engine does not tell.
    """
    stats = model.engine.stats
    used = stats.blocks_used / stats.blocks_total if stats.blocks_total else 0.0
    slots = model.engine.info.max_sequences
    return ", ".join(
        [
            f"running={stats.running}",
            f"waiting={stats.waiting}",
            *([f"slots={slots}"] if slots else []),
            f"kv={used:.2f}",
        ]
    )
