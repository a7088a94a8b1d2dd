"""What a model will take of memory, told before it is loaded."""

from __future__ import annotations

import msgspec


class Needs(msgspec.Struct, frozen=True, kw_only=True, tag="needs"):
    """Bytes, from the model's headers and options alone.

    `image`: at least what the image of its weights takes, and some KiB more at most. `private`: weights that its engine
    has beside the image: none with our CPU kernels; what torch packs on a CPU; a GPU's copy, on the device.
    `workspace`: of the largest step, with sequences of `max_model_len` tokens, and what graphs of steps may take on a
    GPU. `block_bytes`: of one KV block, 0 where no layer attends.
    `kv_least`: a KV cache that holds one such sequence; `kv_most`: one that holds as many as may run.
    `overhead`: private memory of an engine process that has nothing loaded.
    """

    image: int
    private: int
    workspace: int
    block_bytes: int
    kv_least: int
    kv_most: int
    max_model_len: int
    overhead: int
