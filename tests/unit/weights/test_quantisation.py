"""Quantised safetensors: accepted configs, and matrices with their scales."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.weights.quantisation import REASONS, Quantisation, quantisation_of
from plimsoll_runtime.weights.quantisation_tensors import Mxfp4, QuantisedTensors, Scaled
from plimsoll_runtime.weights.safetensors import FLOATS, QUANTISED, SafetensorsFiles
from plimsoll_runtime.weights.stored_tensor import StoredTensor

FP8 = torch.float8_e4m3fn
WEIGHTS = {"num_bits": 8, "symmetric": True}


def said(**values: Any) -> dict[str, Any]:
    return {"quantization_config": values}


def compressed(*groups: Any, **values: Any) -> dict[str, Any]:
    numbered = {str(i): group for i, group in enumerate(groups)}
    return said(quant_method="compressed-tensors", config_groups=numbered, **values)


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({}, None),
        ({"quantization_config": None, "text_config": {}}, None),
        (said(quant_method="fp8", weight_block_size=[128, 64], fmt="e4m3"), Quantisation("fp8", (128, 64))),
        (said(quant_method="fp8", weight_block_size=None), Quantisation("fp8")),
        ({"text_config": said(quant_method="mxfp4")}, Quantisation("mxfp4")),
        ({"compression_config": {"quant_method": "fbgemm_fp8"}}, Quantisation("fbgemm_fp8")),
        (
            compressed({"weights": {**WEIGHTS, "block_structure": "128x64"}}),
            Quantisation("compressed-tensors", (128, 64)),
        ),
        (compressed({"weights": None}), Quantisation("compressed-tensors")),
        (said(quant_method="modelopt", quant_algo=None), Quantisation("modelopt", (128, 128))),
    ],
    ids=str,
)
def test_what_configs_say(config: Mapping[str, Any], found: Quantisation | None) -> None:
    assert quantisation_of(config) == found


@pytest.mark.parametrize(
    ("config", "words"),
    [
        *((said(quant_method=method), f"{method} is not supported: it stores {REASONS[method]}") for method in REASONS),
        (said(quant_method="hqq"), "hqq is not supported: it stores an unknown format. Use the model"),
        (said(bits=4), "unknown is not supported"),
        ({"quantization_config": "fp8"}, "is 'fp8'; it must be an object"),
        (said(quant_method="fp8", fmt="e5m2"), r"numbers in the format e5m2 \(only e4m3"),
        (
            said(quant_method="fp8", weight_block_size=[128]),
            r"weight_block_size is \[128\]; it must be two integers from 1 to 1048576, rows and columns",
        ),
        (said(quant_method="fp8", weight_block_size=[0, 128]), r"weight_block_size is \[0, 128\]"),
        (said(quant_method="fp8", weight_block_size="9" * 5000), "weight_block_size is"),
        (said(quant_method="modelopt", quant_algo="NVFP4"), r"weights as NVFP4 \(only FP8 is supported"),
        (said(quant_method="compressed-tensors"), "has no config_groups"),
        (
            compressed({"weights": {"num_bits": 4}}, format="pack-quantized"),
            r"weights as pack-quantized, 4 bits \(only",
        ),
        (compressed({"weights": {**WEIGHTS, "symmetric": False}}), r"8 bits with zero points \(only eight"),
        (compressed(sparsity_config={"format": "sparse-24-bitmask"}), r"sparse matrices \(sparse-24-bitmask\)"),
    ],
)
def test_what_is_not_read_is_named(config: Mapping[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        quantisation_of(config)


def opened(folder: Path, tensors: dict[str, Tensor], block: tuple[int, int] | None = None, method: str = "fp8") -> Any:
    save_file(tensors, folder / "m.safetensors")
    return QuantisedTensors(
        SafetensorsFiles([folder / "m.safetensors"], FLOATS | QUANTISED), Quantisation(method, block)
    )


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_blocks_that_the_last_rows_and_columns_do_not_fill(tmp_path: Path) -> None:
    values, scales = random(10, 13).to(FP8), random(3, 4)
    source = opened(tmp_path, {"w": values, "w_scale_inv": scales, "a.input_scale": random(1)}, (4, 4))
    assert source.shapes == {"w": (10, 13)}
    wide = scales.repeat_interleave(4, 0)[:10].repeat_interleave(4, 1)[:, :13]
    assert torch.equal(source.stored("w").converted(torch.float32), values.float() * wide)


def test_experts_in_one(tmp_path: Path) -> None:
    values, scales = random(3, 8, 8).to(FP8), random(3, 2, 2)
    source = opened(tmp_path, {"w": values, "w_scale_inv": scales}, (4, 4))
    wide = scales.repeat_interleave(4, 1).repeat_interleave(4, 2)
    stored = source.stored("w")
    assert torch.equal(stored.rows(1, 2).converted(torch.float32), (values.float() * wide)[1:2])
    assert torch.equal(stored.converted(torch.bfloat16), (values.float() * wide).to(torch.bfloat16))


DAMAGED: Mapping[str, tuple[dict[str, Tensor], str, str]] = {
    "fewer-scales": (
        {"w": random(8, 8).to(FP8), "w_scale": random(2, 3)},
        "fp8",
        r"w has the shape \[8, 8\] in blocks",
    ),
    "more-dimensions": ({"w": random(8, 8).to(FP8), "w_scale": random(1, 8, 8)}, "fp8", "does not fit"),
    "a-vector": ({"w": random(8).to(FP8), "w_scale": random(8)}, "fp8", "does not fit"),
    "no-exponents": (
        {"w_blocks": torch.zeros(2, 4, 1, 16, dtype=torch.uint8)},
        "mxfp4",
        "and w_scales has None: in MXFP4",
    ),
    "wide-exponents": (
        {"w_blocks": torch.zeros(2, 4, 1, 16, dtype=torch.uint8), "w_scales": random(2, 4, 1)},
        "mxfp4",
        "in MXFP4 both are uint8",
    ),
    "wrong-blocks": (
        {"w_blocks": torch.zeros(4, 1, 8, dtype=torch.uint8), "w_scales": torch.zeros(4, 1, dtype=torch.uint8)},
        "mxfp4",
        r"w_blocks has the shape \[4, 1, 8\]",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_does_not_belong_together(name: str, tmp_path: Path) -> None:
    tensors, method, words = DAMAGED[name]
    with pytest.raises(ModelError, match=words):
        opened(tmp_path, tensors, (4, 4), method)


@pytest.mark.parametrize("dtype", [FP8, torch.int8, torch.uint8], ids=str)
def test_a_matrix_without_scales(dtype: torch.dtype, tmp_path: Path) -> None:
    source = opened(tmp_path, {"w": torch.ones(4, 4).to(dtype), "norm": random(4)})
    assert torch.equal(source.stored("norm").converted(torch.float32), random(4))
    with pytest.raises(ModelError, match=f"w is stored as {str(dtype)[6:]}, but has no _scale_inv or _scale tensor"):
        source.stored("w")


@given(st.integers(1, 4), st.integers(1, 40), st.integers(1, 9), st.data())
def test_parts_of_scaled_matrices(rows: int, columns: int, run: int, data: st.DataObject) -> None:
    parts = {"values": random(rows, columns).to(FP8), "scales": random(rows, -(-columns // run))}
    check_parts(StoredTensor(Scaled(run), (rows, columns), parts), run, data)


@given(st.integers(1, 4), st.integers(1, 3), st.data())
def test_parts_of_mxfp4(rows: int, blocks: int, data: st.DataObject) -> None:
    generator = torch.Generator().manual_seed(rows)
    packed = torch.randint(0, 256, (rows, blocks, 16), generator=generator, dtype=torch.uint8)
    exponents = torch.randint(100, 140, (rows, blocks), generator=generator, dtype=torch.uint8)
    check_parts(StoredTensor(Mxfp4(), (rows, 32 * blocks), {"blocks": packed, "exponents": exponents}), 32, data)


def check_parts(whole: StoredTensor, run: int, data: st.DataObject) -> None:
    """Check that rows, and columns if they may be cut, equal those of the whole tensor."""
    rows, columns = whole.shape
    expected = whole.converted(torch.float32)
    first = data.draw(st.integers(0, rows - 1))
    last = data.draw(st.integers(first + 1, rows))
    assert torch.equal(whole.rows(first, last).converted(torch.float32), expected[first:last])
    begin = data.draw(st.integers(0, columns - 1))
    end = data.draw(st.integers(begin + 1, columns))
    if begin % run or (end % run and end != columns):
        with pytest.raises(ValueError, match="columns"):
            whole.columns(begin, end)
    else:
        assert torch.equal(whole.columns(begin, end).converted(torch.float32), expected[:, begin:end])


def test_every_number_of_mxfp4() -> None:
    """Compares with the format's definition: sign, two exponent bits, one mantissa bit, and a shared exponent."""
    bytes_ = torch.arange(256, dtype=torch.uint8).view(16, 1, 16)
    exponents = torch.arange(120, 136, dtype=torch.uint8).view(16, 1)
    stored = StoredTensor(Mxfp4(), (16, 32), {"blocks": bytes_, "exponents": exponents})

    def number(bits: int) -> float:
        exponent, mantissa = bits >> 1 & 3, bits & 1
        magnitude = mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2.0 ** (exponent - 1)
        return -magnitude if bits & 8 else magnitude

    expected = [
        [number(bits) * 2.0 ** (row - 7) for i in range(16) for bits in ((16 * row + i) & 15, (16 * row + i) >> 4)]
        for row in range(16)
    ]
    for dtype in (torch.float32, torch.bfloat16):
        assert torch.equal(stored.converted(dtype), torch.tensor(expected, dtype=dtype))
