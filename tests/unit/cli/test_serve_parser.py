"""`plimsoll serve`: parsing of its command line, and errors that say what to do."""

from pathlib import Path

import pytest

from plimsoll_runtime.api.generation.choices import MAX_SEQUENCES
from plimsoll_runtime.api.server.config import ServerConfig, default_name
from plimsoll_runtime.cli.main import build_parser, main
from plimsoll_runtime.cli.serve import server_config
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.options import MAX_WAITING, ServingOptions


def parse(*words: str) -> ServerConfig:
    return server_config(build_parser().parse_args(["serve", *words]))


def test_defaults_are_the_engines() -> None:
    config = parse("demo://gemma-3-270m")
    assert config.engine == EngineConfig(model="demo://gemma-3-270m")
    assert (config.names, config.port, config.api_keys, config.drain_seconds) == (("gemma-3-270m",), 8000, (), 30)
    assert config.serving == ServingOptions()
    assert config.serving.max_waiting == MAX_WAITING == MAX_SEQUENCES
    assert not config.share_prefix_cache


@pytest.mark.parametrize(
    ("option", "told"),
    [("--tool-format", "unknown tool-call format 'x'"), ("--reasoning-format", "unknown reasoning format")],
)
def test_formats_that_nobody_knows(option: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("m", option, "x")
    assert told in capsys.readouterr().err


def test_every_flag_reaches_its_field() -> None:
    words = (
        "/models/claim/m --name a --name b --host 0.0.0.0 --port 9 --dtype bfloat16 --max-model-len 4096 "
        "--max-batch-tokens 512 --max-sequences 7 --kv-memory 40% --block-size 32 --threads 3 --no-prefix-caching "
        "--attention-backend cpu --policy sjf --api-key k1 --api-key k2 --revision main --drain-seconds 2.5 "
        "--check-integrity-every 1000 --max-waiting 50 --kv-host-memory 1GiB --kv-disk /cache/kv "
        "--kv-disk-size 20GiB --max-logit-bias 9 --step-timeout 12.5 --max-waiting-tokens 6000 --share-prefix-cache "
        "--tool-format hermes --reasoning-format none --thinking-budget 0 --graph-seconds 3.5 --graph-memory 1GiB "
        "--device cpu --image-parts describe --generation-config none"
    )
    config = parse(*words.split())
    assert config.engine == EngineConfig(
        model="/models/claim/m",
        revision="main",
        device="cpu",
        dtype="bfloat16",
        max_model_len=4096,
        max_batch_tokens=512,
        max_sequences=7,
        kv_memory="40%",
        kv_host_memory="1GiB",
        kv_disk="/cache/kv",
        kv_disk_size="20GiB",
        block_size=32,
        threads=3,
        prefix_caching=False,
        attention_backend="cpu",
        policy="sjf",
        check_integrity_every=1000,
        step_timeout=12.5,
        graph_seconds=3.5,
        graph_memory="1GiB",
    )
    assert (config.names, config.host, config.port) == (("a", "b"), "0.0.0.0", 9)
    assert (config.api_keys, config.drain_seconds) == (("k1", "k2"), 2.5)
    assert config.serving == ServingOptions(
        max_waiting=50,
        max_waiting_tokens=6000,
        max_logit_bias=9,
        tool_format="hermes",
        reasoning_format="none",
        thinking_budget=0,
        image_parts="describe",
        generation_config="none",
    )
    assert config.share_prefix_cache


def test_keys_of_the_environment_join_those_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLIMSOLL_API_KEY", "env1, env2,,k")
    monkeypatch.setenv("PLIMSOLL_TERMINATION_LOG", "/dev/termination-log")
    config = parse("m", "--api-key", "k")
    assert config.api_keys == ("env1", "env2", "k")
    assert config.termination_log == "/dev/termination-log"


def test_keys_of_a_file_are_in_no_list_of_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLIMSOLL_API_KEY", "env")
    parsed = parse("m", "--api-key-file", str(tmp_path / "keys"))
    assert (parsed.api_keys, parsed.api_key_file) == (("env",), tmp_path / "keys")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "cannot be read"),
        (b"", "has no key"),
        (b" \n\n", "has no key"),
        (b"good\n\ntwo words\n", "key 2 must be"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_a_file_without_usable_keys_is_refused_and_none_is_shown(
    content: bytes | None, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    assert main(["serve", "m", "--api-key-file", str(path)]) == 2
    shown = capsys.readouterr().err
    assert told in shown
    assert "two words" not in shown


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--threads", "0"], "0 is not between 1"),
        (["--threads", "-1"], "-1 is not between 1"),
        (["--kv-disk", ""], "it must be a path"),
        (["--kv-disk-size", "huge"], "write it like 2GiB, 512MiB or 40%"),
        (["--threads", "two"], "'two' is not an integer"),
        (["--check-integrity-every", "-1"], "-1 is not between 0"),
        (["--max-waiting", "0"], "0 is not between 1"),
        (["--max-logit-bias", "0"], "0 is not between 1"),
        (["--port", "65536"], "65536 is not between 0 and 65535"),
        (["--port", "-1"], "-1 is not between"),
        (["--metrics-port", "65536"], "65536 is not between 0 and 65535"),
        (["--deployment", "gemma"], "'gemma' is not NAMESPACE/NAME"),
        (["--deployment", "team/Gemma"], "the name 'Gemma' is invalid; use up to 253 of a-z"),
        (["--deployment", "team/a/b"], "the name 'a/b' is invalid"),
        (["--block-size", "17"], "17 is not one of 8, 16, 32, 64, 128, 256"),
        (["--block-size", "512"], "512 is not one of"),
        (["--kv-memory", "lots"], "write it like 2GiB, 512MiB or 40%"),
        (["--kv-memory", "140%"], "write at most 100%"),
        (["--kv-memory", "0"], "write it like"),
        (["--kv-memory", "-1GiB"], "expected one argument"),
        (["--dtype", "int3"], "invalid choice"),
        (["--max-model-len", "0"], "0 is not between 1"),
        (["--max-model-len", "9" * 5000], "is not an integer"),
        (["--drain-seconds", "nan"], "is not between 0 and 86400"),
        (["--drain-seconds", "-2"], "is not between 0 and 86400"),
        (["--name", "two words"], "printable characters without spaces"),
        (["--name", ""], "1 to 256 printable characters"),
        (["--api-key", "a\nb"], "printable characters without spaces"),
        (["--attention-backend", "magic"], "invalid choice"),
        (["--attention-backend", "auto+sdpa"], "invalid choice"),
        (["--no-such-option"], "unrecognized arguments: --no-such-option"),
        (["--max-model", "5"], "unrecognized arguments"),
    ],
)
def test_impossible_values_exit_with_2_and_say_why(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "m", *words])
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def test_options_that_contradict_each_other_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "m", "--name", "a", "--name", "a"]) == 2
    assert "give each name once" in capsys.readouterr().err
    with pytest.raises(UsageError, match="at least 2"):
        parse("m", "--max-model-len", "1")


@pytest.mark.parametrize(
    "words",
    [
        ["up", "f", "--onc"],
        ["status", "--js"],
        ["down", "--no"],
        ["fetch", "m", "--rev", "r"],
        ["profile", "m", "--js", "f"],
    ],
)
def test_no_command_guesses_what_an_option_means(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert (
        f"unrecognized arguments: {words[2] if words[0] in ('up', 'fetch', 'profile') else words[1]}"
        in capsys.readouterr().err
    )


def test_a_command_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("demo://gemma-3-270m", "gemma-3-270m"),
        ("hf://org/model", "org/model"),
        ("org/model", "org/model"),
        ("/models/claim/path/tiny", "tiny"),
        ("/models/tiny.Q4_K_M.gguf", "tiny.Q4_K_M"),
        ("./here/model", "model"),
        ("file:///data/model", "model"),
        ("folder", "folder"),
    ],
)
def test_a_model_without_a_name_gets_one(model: str, name: str) -> None:
    assert default_name(model) == name
