"""`python -m kernel_support.sampling_variants`: count the compiled variants of the sampling kernels over batch sizes.

Batches of one model, some of them parts of larger ones, are compiled for a device that this machine lacks. Prints one
JSON object: the number of compiled variants of each kernel.
"""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import torch
from kernel_support.ahead import TARGETS, compiling

from plimsoll_kernels.sampling import kernel
from plimsoll_kernels.sampling.params import RowParams

BATCHES = [(0, 1), (1, 2), (3, 6), (0, 16), (5, 22), (0, 64), (7, 200), (0, 256)]
"""First and last row of batches within one of 256 rows."""
VOCABULARIES = (32_000, 50_257)


def variants(vocab: int) -> dict[str, int]:
    """Return the compiled variants by kernel."""
    found: list[tuple[str, Any]] = []
    logits = torch.zeros(256, vocab)
    ones, off = torch.ones(256), torch.zeros(256, dtype=torch.int32)
    uniform = torch.zeros(256, dtype=torch.float64)
    with compiling(TARGETS["sm_90"], found):
        for first, last in BATCHES:
            part = slice(first, last)
            params = RowParams(ones[part], off[part], ones[part], ones[part])
            kernel.launch_sample(logits[part], params, uniform[part])
    return {name: len({id(compiled) for other, compiled in found if other == name}) for name, _ in found}


def main() -> None:
    """Print one line for each vocabulary."""
    with patch.object(kernel, "multiprocessors", return_value=132):
        for vocab in VOCABULARIES:
            print(json.dumps(variants(vocab)), flush=True)


if __name__ == "__main__":
    main()
