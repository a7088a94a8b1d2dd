"""A load takes little more memory than it keeps: the benchmark's own measure, on a small model."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Kind
from model_support.gguf_files import write_gguf
from model_support.tiny import make_model, save_model

from loading.run import load

SIZES = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 12, "num_key_value_heads": 4}
"""50 MB in float32; a layer, which temporarily exists twice, is a twelfth of it."""
BOUND = 1.3
LIBRARIES = 8 * 2**20
"""A load needs 7 MiB of the libraries' pages, measured."""


@pytest.fixture(params=["shards", "Q8_0"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    made = make_model("LlamaConfig", SIZES)
    if request.param in Kind.__members__:
        write_gguf(made, tmp_path / "m.gguf", Kind[request.param])
        return tmp_path / "m.gguf"
    save_model(made, tmp_path, max_shard_size="10MB")
    assert len(list(tmp_path.glob("*.safetensors"))) == 6
    return tmp_path


@pytest.mark.long
def test_the_peak_of_a_load(model: Path) -> None:
    """Of the second load in a process: by then the libraries' pages are present, unless the kernel has
    reclaimed some.
    """
    taken = load(str(model), 1, "--dtype", "float32", "--backend", "auto", "--again")
    kept, faulted = taken["anonymous"], min(max(0, taken["files_mapped"]), LIBRARIES)
    assert kept > taken["weights"] / 2, "the rest may lie in what the first one had taken and given back"
    assert taken["peak"] - taken["base"] - faulted < BOUND * max(kept, taken["weights"])
