"""GGUF files: all types are decoded, all metadata checked, and damage is rejected by name."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFValueType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_support.gguf_files import SCALES, random_blocks
from model_support.specs import ropes_of

from plimsoll_runtime.errors import ModelError, PlimsollError, SourceError
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.registry.registry import describe
from plimsoll_runtime.models.tensors import check_tensors
from plimsoll_runtime.weights import stored_tensor
from plimsoll_runtime.weights.gguf import metadata as metadata_module
from plimsoll_runtime.weights.gguf.metadata import read_metadata
from plimsoll_runtime.weights.gguf.tensors import GgufTensors
from plimsoll_runtime.weights.sources.resolve import open_gguf
from plimsoll_runtime.weights.tensor_source import open_tensors

ONES = np.ones(8, np.float32)
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1}
BASE: Mapping[str, Any] = {
    "context_length": 64,
    "embedding_length": 8,
    "block_count": 1,
    "feed_forward_length": 16,
    "attention.head_count": 2,
    "attention.head_count_kv": 1,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "vocab_size": 5,
}
TENSORS: Mapping[str, tuple[int, ...]] = {
    "token_embd.weight": (5, 8),
    "output_norm.weight": (8,),
    "blk.0.attn_norm.weight": (8,),
    "blk.0.attn_q.weight": (8, 8),
    "blk.0.attn_k.weight": (4, 8),
    "blk.0.attn_v.weight": (4, 8),
    "blk.0.attn_output.weight": (8, 8),
    "blk.0.ffn_norm.weight": (8,),
    "blk.0.ffn_gate.weight": (16, 8),
    "blk.0.ffn_up.weight": (16, 8),
    "blk.0.ffn_down.weight": (8, 16),
}
TYPES: Mapping[type, GGUFValueType] = {
    bool: GGUFValueType.BOOL,
    int: GGUFValueType.UINT32,
    float: GGUFValueType.FLOAT32,
    str: GGUFValueType.STRING,
}


def write(
    path: Path,
    *,
    arch: str = "llama",
    drop: tuple[str, ...] = (),
    more: Mapping[str, Any] | None = None,
    general: Mapping[str, Any] | None = None,
    **values: Any,
) -> Path:
    """Write a small Llama (or another `arch`) with pairs and tensors dropped and added.

    Names of pairs use underscores for dots: rope__freq_base=1.0. `general`: pairs by their full names.
    """
    named = {k.replace("__", "."): v for k, v in values.items()}
    writer = gguf.GGUFWriter(path, arch)
    for key, value in {**BASE, **named}.items():
        if isinstance(value, list):
            writer.add_array(f"{arch}.{key}", value)
        elif key not in drop:
            writer.add_key_value(f"{arch}.{key}", value, TYPES[type(value)])
    for key, value in (general or {}).items():
        writer.add_key_value(key, value, TYPES[type(value)])
    for name, shape in TENSORS.items():
        if name not in drop:
            writer.add_tensor(name, np.ones(shape, np.float32))
    for name, tensor in (more or {}).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def check(path: Path) -> None:
    """Do what a loader does before it reads the first tensor."""
    files = open_gguf(path)
    program = program_of(describe(files.config))
    check_tensors(program, open_tensors(files, program.stored_shapes()).shapes)


def one_tensor(path: Path, stored: Any, kind: Kind, name: str = "t") -> GgufTensors:
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_tensor(name, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufTensors([path], HEADS, {"t": ()})


def test_a_whole_model(tmp_path: Path) -> None:
    check(write(tmp_path / "m.gguf"))


def test_what_a_file_recommends_for_sampling(tmp_path: Path) -> None:
    """The keys are llama.cpp's. Its repetition penalty differs from ours and is left out."""
    keys = gguf.Keys.General
    said = {
        keys.SAMPLING_TEMP: 0.5,
        keys.SAMPLING_TOP_P: 0.25,
        keys.SAMPLING_TOP_K: 40,
        keys.SAMPLING_PENALTY_REPEAT: 1.5,
    }
    found = open_gguf(write(tmp_path / "m.gguf", general=said)).generation_config
    assert found == {"temperature": 0.5, "top_p": 0.25, "top_k": 40}
    assert open_gguf(write(tmp_path / "plain.gguf")).generation_config == {}


MADE = [Kind.F32, Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0, Kind.TQ1_0, Kind.TQ2_0]


@pytest.mark.parametrize("kind", [*MADE, Kind.MXFP4, *SCALES], ids=lambda k: k.name)
def test_every_type_is_decoded(tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding in pieces, with a remainder, equals decoding at once."""
    if kind in SCALES:
        stored = random_blocks(kind, 5, 512, spread=1.0)
    else:
        values = np.random.default_rng(0).normal(size=(5, 512)).astype(np.float32)
        stored = gguf.quantize(values, kind)
    monkeypatch.setattr(stored_tensor, "PIECE", 1024)
    read = one_tensor(tmp_path / "m.gguf", stored, kind).stored("t").converted(torch.float32)
    expected = torch.from_numpy(gguf.dequantize(stored, kind).copy())
    assert read.shape == (5, 512)
    assert float(read.std()) > 0.1
    assert torch.equal(read, expected)
    assert torch.equal(
        GgufTensors([tmp_path / "m.gguf"], HEADS, {"t": ()}).stored("t").converted(torch.bfloat16), expected.bfloat16()
    )


@pytest.mark.parametrize(
    ("kind", "stored", "message"),
    [
        (Kind.I32, np.ones((2, 4), np.int32), "t has the type I32, which is not supported"),
        (Kind.F64, np.ones((2, 4), np.float64), "t has the type F64, which is not supported"),
        (Kind.Q8_K, np.ones((2, 292), np.uint8), "t has the type Q8_K, which is not supported"),
    ],
)
def test_types_that_cannot_be_decoded(tmp_path: Path, kind: Kind, stored: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        one_tensor(tmp_path / "m.gguf", stored, kind)


def test_an_unknown_type(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    one_tensor(path, np.ones((2, 4), np.float32), Kind.F32)
    whole = path.read_bytes()
    old = struct.pack("<Q", 1) + b"t" + struct.pack("<I2QI", 2, 4, 2, Kind.F32)
    assert whole.count(old) == 1
    path.write_bytes(whole.replace(old, old[:-4] + struct.pack("<I", 99)))
    with pytest.raises(ModelError, match=r"t has the type 99 \(unknown\), which is not supported"):
        GgufTensors([path], HEADS, {"t": ()})


def test_rows_that_blocks_cannot_hold(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    one_tensor(path, gguf.quantize(np.ones((2, 32), np.float32), Kind.Q8_0), Kind.Q8_0)
    old = struct.pack("<I2Q", 2, 32, 2)
    whole = path.read_bytes()
    assert whole.count(old) == 1
    path.write_bytes(whole.replace(old, struct.pack("<I2Q", 2, 16, 4)))
    with pytest.raises(ModelError, match=r"t has the shape \[4, 16\], which Q8_0 cannot store: .* multiple of 32"):
        GgufTensors([path], HEADS, {"t": ()})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"arch": "rwkv6"}, "architecture 'rwkv6' is not supported; supported are llama"),
        ({"drop": ("context_length",)}, r"no key llama\.context_length"),
        ({"drop": ("attention.layer_norm_rms_epsilon",)}, r"no key llama\.attention\.layer_norm_rms_epsilon"),
        ({"drop": ("blk.0.attn_v.weight",)}, r"lack model\.layers\.0\.self_attn\.v_proj\.weight"),
        ({"block_count": 2}, r"lack model\.layers\.1\."),
        ({"block_count": 2**31}, r"block_count is 2147483648, but the file has 11 tensors"),
        ({"feed_forward_length": 24}, r"gate_proj\.weight \[16, 8\] instead of \[24, 8\]"),
        ({"vocab_size": 6}, r"embed_tokens\.weight \[5, 8\] instead of \[6, 8\]"),
        ({"attention__head_count": "two"}, r"attention\.head_count is 'two', but must be of type int"),
        ({"attention__head_count": [2, 2]}, r"attention\.head_count is \[2, 2\], but must be of type int"),
        ({"attention__head_count": 0}, r"attention\.head_count is 0"),
        ({"attention__head_count_kv": 3}, "num_attention_heads 2 is not a multiple of num_key_value_heads 3"),
        ({"attention__value_length": 8}, r"attention\.value_length is 8, which is not supported for heads of 4"),
        ({"rope__dimension_count": 2}, r"rope\.dimension_count is 2, which is not supported for heads of 4"),
        ({"rope__freq_base": 0.0}, "rope_theta is 0"),
        ({"rope__scaling__type": "longrope", "rope__scaling__factor": 2.0}, "rope scaling 'longrope' is not supported"),
        ({"rope__scaling__type": "linear"}, r"no key llama\.rope\.scaling\.factor"),
        (
            {"rope__scaling__type": "yarn", "rope__scaling__factor": 2.0},
            r"no key llama\.rope\.scaling\.original_context",
        ),
        ({"rope__scaling__yarn_log_multiplier": 0.1}, r"llama\.rope\.scaling\.yarn_log_multiplier = 0\.1.* not supp"),
        ({"expert_count": 8}, r"no key llama\.expert_used_count"),
        ({"arch": "qwen2", "expert_count": 8}, r"qwen2\.expert_count = 8 is not supported"),
        (
            {"expert_count": 2, "expert_used_count": 1},
            r"lack model\.layers\.0\.block_sparse_moe\.gate\.weight, model\.layers\.0\.block_sparse_moe\.experts\.w1",
        ),
        (
            {"expert_count": 2, "expert_used_count": 1, "expert_gating_func": 2},
            "expert_gating_func is 2; this architecture supports only 1",
        ),
        ({"logit_scale": 0.5}, r"llama\.logit_scale = 0\.5 is not supported"),
        ({"attention__sliding_window": 4096}, r"llama\.attention\.sliding_window = 4096 is not supported"),
        ({"attention__causal": False}, r"llama\.attention\.causal = False is not supported"),
        ({"brand_new": [1] * 100}, r"llama\.brand_new = \[1, 1.* \.\.\. is not supported"),
        ({"arch": "gemma3"}, r"no key gemma3\.attention\.sliding_window"),
        (
            {"arch": "gemma3", "attention__sliding_window": 4, "attention__sliding_window_pattern": 0},
            "sliding_window_pattern is 0; it must be a positive number or a list",
        ),
        (
            {"arch": "gemma3", "attention__sliding_window": 4, "attention__sliding_window_pattern": [True, False]},
            "layer_types has 2 layers, num_hidden_layers is 1",
        ),
    ],
)
def test_what_would_change_the_numbers_is_refused(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        check(write(tmp_path / "m.gguf", **values))


def test_what_changes_nothing_is_accepted(tmp_path: Path) -> None:
    values: dict[str, Any] = {"expert_count": 0, "attention__causal": True, "rope__scaling__attn_factor": 1.0}
    check(write(tmp_path / "m.gguf", attention__sliding_window=0, tensor_data_layout="Meta AI original pth", **values))


def test_gemma3_layers(tmp_path: Path) -> None:
    def kinds(**values: Any) -> list[str]:
        path = write(tmp_path / "m.gguf", arch="gemma3", attention__sliding_window=4, **values)
        types: list[str] = open_gguf(path).config["layer_types"]
        return [t.split("_")[0] for t in types]

    assert kinds(block_count=7) == ["sliding"] * 5 + ["full", "sliding"]
    assert kinds(block_count=3, attention__sliding_window_pattern=2) == ["sliding", "full", "sliding"]
    assert kinds(block_count=2, attention__sliding_window_pattern=[False, True]) == ["full", "sliding"]


def test_rope_factors(tmp_path: Path) -> None:
    def file(factors: Any, **values: Any) -> Path:
        return write(tmp_path / "f.gguf", more={"rope_freqs.weight": factors}, **values)

    path = file(np.array([1, 8], np.float32))
    check(path)
    assert ropes_of(describe(open_gguf(path).config))[0].frequency_factors == (1.0, 8.0)
    with pytest.raises(ModelError, match=r"3 frequency factors .*; 4 rotated dimensions need 2"):
        check(file(np.ones(3, np.float32)))
    with pytest.raises(ModelError, match="frequency_factors is 0"):
        check(file(np.zeros(2, np.float32)))
    with pytest.raises(ModelError, match="must be at most 65536 float32"):
        check(file(np.ones(2, np.float16)))
    with pytest.raises(ModelError, match="has two rope scalings"):
        check(file(np.ones(2, np.float32), rope__scaling__type="linear"))
    path.write_bytes(file(np.ones(2, np.float32)).read_bytes()[:-32])
    with pytest.raises(ModelError, match="truncated"):
        check(path)


def test_an_unexpected_tensor(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", more={"blk.0.ffn_gate_inp.weight": ONES, "rope_freqs.bias": ONES})
    with pytest.raises(ModelError, match=r"unexpected tensors: blk\.0\.ffn_gate_inp\.weight, rope_freqs\.bias"):
        check(path)


def test_a_name_twice(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes().replace(b"blk.0.attn_v.weight", b"blk.0.attn_k.weight"))
    with pytest.raises(ModelError, match=r"two tensors have the name blk\.0\.attn_k\.weight"):
        read_metadata(path)


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf")
    whole = path.read_bytes()
    last = len(whole) - 8 * 16 * 4
    for length in range(0, last, 11):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError):
            check(path)
    path.write_bytes(whole[:last])
    with pytest.raises(ModelError, match=r"truncated: .* ends at byte"):
        check(path)


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"GGML" + bytes(40), "does not start with the bytes GGUF"),
        (b"GGUF" + struct.pack("<IQQ", 4, 0, 0), "version 4 is not supported"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version 50331648 is not supported"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0), "not a readable GGUF file"),
        (pair(b"a", 99, bytes(8)), "a value has the unknown type 99"),
        (pair(b"a", 9, struct.pack("<IQ", 9, 1)), "an array has the unknown type 9"),
        (pair(b"a", 9, struct.pack("<IQ", 4, 2**62)), "an array of 4611686018427387904 values is larger than the file"),
        (
            pair(b"a.b", 9, struct.pack("<IQ", 0, 2**24 + 1) + bytes(2**24 + 1)),
            "a.b: an array has 16,777,217 values, more than",
        ),
        (
            pair(b"a.b", 8, struct.pack("<Q", 2**24 + 1) + bytes(2**24 + 1)),
            "a.b: a string has 16,777,217 bytes, more than",
        ),
        (pair(b"a", 9, struct.pack("<IQQ", 8, 1, 2**63)), "not a readable GGUF file"),
        (pair(b"a", 8, struct.pack("<Q", 2**64 - 1)), "string is truncated"),
        (pair(b"\xff", 4, bytes(4)), "not a readable GGUF file"),
        (pair(b"general.alignment", 4, bytes(4)), "general.alignment is 0"),
        (pair(b"general.alignment", 8, bytes(8)), "general.alignment is ''"),
    ],
)
def test_damaged_metadata(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        read_metadata(path)


@pytest.mark.parametrize("kind", [8, 4], ids=["texts", "numbers"])
def test_metadata_are_bounded_together(tmp_path: Path, kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_module, "MAX_BYTES", 1000)
    values = struct.pack("<Q", 20) + bytes(20) if kind == 8 else bytes(4)
    array = struct.pack("<IQ", kind, 300) + values * 300
    path = tmp_path / "m.gguf"
    path.write_bytes(pair(b"tokens", 9, array))
    with pytest.raises(
        ModelError, match=r"m\.gguf is not a readable GGUF file: tokens: .*(exceeds|exceed the limit of) 1,000 by"
    ):
        read_metadata(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="gone"):
        read_metadata(tmp_path / "gone.gguf")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, bytes]:
    """Write files with each kind of pair and of scaling."""
    folder = tmp_path_factory.mktemp("gguf")
    return {
        "llama": write(
            folder / "a.gguf",
            rope__scaling__type="yarn",
            rope__scaling__factor=4.0,
            rope__scaling__original_context_length=16,
        ).read_bytes(),
        "gemma3": write(
            folder / "b.gguf",
            arch="gemma3",
            attention__sliding_window=4,
            attention__sliding_window_pattern=[True],
            final_logit_softcapping=3.0,
        ).read_bytes(),
    }


def survives(act: Callable[[], None]) -> None:
    """Check that a call succeeds or raises a PlimsollError."""
    with contextlib.suppress(PlimsollError):
        act()


@given(
    arch=st.sampled_from(["llama", "gemma3"]),
    changes=st.lists(
        st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=8) | st.sampled_from([b"\xff" * 8, bytes(8)])),
        min_size=1,
        max_size=3,
    ),
)
@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_any_damage(tmp_path: Path, models: Mapping[str, bytes], arch: str, changes: list[tuple[float, bytes]]) -> None:
    """Damages mainly the metadata, the first two thirds of these files."""
    whole = bytearray(models[arch])
    for where, new in changes:
        at = int(where * len(whole) * 2 / 3)
        whole[at : at + len(new)] = new
    path = tmp_path / "m.gguf"
    path.write_bytes(whole)
    survives(lambda: check(path))


@given(content=st.binary(max_size=200), pairs=st.integers(0, 3), tensors=st.integers(0, 3))
@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_any_bytes(tmp_path: Path, content: bytes, pairs: int, tensors: int) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, tensors, pairs) + content)
    survives(lambda: check(path))
