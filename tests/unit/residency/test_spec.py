"""Model specs: parsing, validation, and conversion to engine options."""

from typing import Any

import pytest

from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.residency.settings import Settings
from plimsoll_runtime.residency.spec import ModelName, access_of, decode_spec, engine_config, least_kv, served_names
from plimsoll_runtime.weights.sources.hub import Access

LEAST = {"revision": "1", "source": "hf://Qwen/Qwen3-0.6B"}


def test_a_spec_becomes_an_engines_options() -> None:
    spec = decode_spec(
        b'{"revision": "7", "source": "hf://a/b", "modelRevision": "main", "servedNames": ["x", "y"], "weight": 2,'
        b' "runtime": {"maxModelLen": 128, "prefixCaching": false, "dtype": "float32", "maxWaiting": 5,'
        b' "maxLogitBias": 1},'
        b' "minimumKv": "512Mi", "priority": -3, "pinned": true, "token": "hf_secret"}'
    )
    assert engine_config(spec) == EngineConfig(
        model="hf://a/b", revision="main", max_model_len=128, prefix_caching=False, dtype="float32"
    )
    assert least_kv(spec) == 512 * 2**20
    assert served_names(ModelName("n", "m"), spec) == ("x", "y")
    assert served_names(ModelName("n", "m"), decode_spec(LEAST)) == ("m",)
    assert "hf_secret" not in repr(spec)


def test_another_token_is_no_reason_to_load_anew() -> None:
    specs = [decode_spec(LEAST | more) for more in ({}, {"token": "hf_old"}, {"token": "hf_new"}, {"token": ""})]
    assert len({str(spec.needs_reload) for spec in specs}) == 1
    assert [access_of(ModelName("team", "m"), spec) for spec in specs] == [
        None,
        Access("team", "hf_old"),
        Access("team", "hf_new"),
        Access("team", ""),
    ]
    assert "hf_old" not in repr(access_of(ModelName("team", "m"), specs[1]))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"token": "two words"}, "token must be at most 4096 printable ASCII characters without spaces"),
        ({"token": "x" * 4097}, "token must be at most"),
        ({"token": "hf\nX-Header: 1"}, "token must be at most"),
        ({"runtime": {"trustRemoteCode": True}}, "runtime has no trustRemoteCode"),
        ({"runtime": {"device": "cpu"}}, "runtime has no device"),
        ({"sauce": 1}, "unknown field `sauce`"),
        ({"source": ""}, "source must be a text"),
        ({"revision": 3}, "Expected `str`, got `int`"),
        ({"weight": 0}, "weight must be from 0.001 to 1000, not 0"),
        ({"weight": float("nan")}, "weight must be"),
        ({"priority": 1001}, "priority must be from -1000 to 1000"),
        ({"servedNames": ["x"] * 65}, "servedNames must be at most 64"),
        ({"servedNames": [""]}, "servedNames must be"),
        ({"runtime": {"kvMemry": 1}}, "runtime has no kvMemry; it has attentionBackend, "),
        ({"runtime": {"model": "x"}}, "runtime has no model"),
        ({"runtime": {"maxModelLen": "x"}}, "runtime is invalid: Expected `int | null`"),
        ({"runtime": {"threads": 1025}}, "runtime.threads must be at most 1024, not 1025"),
        ({"runtime": {"threads": 0}}, "threads must be at least 1, not 0"),
        ({"runtime": {"maxModelLen": 1}}, "max_model_len must be at least 2"),
        ({"minimumKv": 0}, "minimumKv must be more than 0"),
        ({"minimumKv": "10%"}, ", not a share"),
        ({"minimumKv": "lots"}, "'lots' is not an amount of memory"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as refusal:
        decode_spec(LEAST | change)
    assert says in str(refusal.value)


def test_what_is_no_json_is_named() -> None:
    with pytest.raises(UsageError, match="the spec of the model is invalid"):
        decode_spec(b"{")


@pytest.mark.parametrize(
    "change",
    [
        {"line": 0.0}, {"line": 1.1}, {"sleepers": -1}, {"patience": float("nan")}, {"wait_seconds": 0},
        {"longest_back_off": 1.0}, {"device": "gpu"},
    ],
)  # fmt: skip
def test_settings_that_no_host_can_have(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"line|must|negative"):
        Settings(**change)
