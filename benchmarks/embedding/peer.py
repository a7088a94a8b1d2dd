"""`python -m embedding.peer FOLDER THREADS`: sentence-transformers in a separate process, controlled by lines of JSON.

A line has a dtype and texts; the answer has the seconds that `encode` took, and the vectors of the first few.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch

SHOWN = 8


def main() -> int:
    """Answer each line of the input until it ends."""
    import sentence_transformers

    folder, threads = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(threads)
    loaded: dict[str, Any] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        dtype = asked["dtype"]
        if dtype not in loaded:
            loaded[dtype] = sentence_transformers.SentenceTransformer(
                folder, device="cpu", model_kwargs={"dtype": dtype}
            )
        began = time.perf_counter()
        vectors = loaded[dtype].encode(asked["texts"], batch_size=32, show_progress_bar=False)
        seconds = time.perf_counter() - began
        print(json.dumps({"seconds": seconds, "vectors": vectors[:SHOWN].tolist()}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
