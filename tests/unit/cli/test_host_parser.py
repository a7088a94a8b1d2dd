"""`plimsoll host`: parsing of its command line, and errors that say what to do."""

from pathlib import Path

import pytest

from plimsoll_runtime.api.host.config import HostConfig
from plimsoll_runtime.cli import host as host_module
from plimsoll_runtime.cli.host import host_config, host_settings
from plimsoll_runtime.cli.main import build_parser, main
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.residency.engines import pressure
from plimsoll_runtime.residency.settings import Settings
from plimsoll_runtime.residency.spec import ModelName

MODELS = """
apiVersion: plimsoll.dev/v1alpha1
kind: ModelDeployment
metadata: {name: small, namespace: team}
spec:
  model: {source: "demo://gemma-3-270m", servedNames: [gemma, g]}
  runtime: {maxModelLen: 512, kvMemory: 64MiB, threads: 2, maxWaiting: 7}
---
apiVersion: plimsoll.dev/v1alpha1
kind: ModelDeployment
metadata: {name: stopped}
spec: {model: {source: "hf://org/m"}, replicas: 0}
"""


def parse(*words: str) -> tuple[HostConfig, Settings]:
    args = build_parser().parse_args(["host", *words])
    return host_config(args), host_settings(args)


def test_defaults_are_those_of_the_records() -> None:
    config, settings = parse()
    assert config == HostConfig()
    assert settings == Settings()


def test_every_flag_reaches_its_field(tmp_path: Path) -> None:
    words = (
        "--host 0.0.0.0 --port 9 --host-address 127.0.0.2 --host-port 10 --api-key k --drain-seconds 2.5 "
        f"--host-token-file {tmp_path}/a --share-prefix-cache "
        "--line 75% --sleepers 8GiB --minimum-residency 5 --service-slice 6 --patience 7 --hold-seconds 8 "
        "--max-held 9 --max-held-bytes 1MiB --keep-alive-seconds 2 --load-seconds 11 --device cuda"
    )
    config, settings = parse(*words.split())
    assert config == HostConfig(
        host="0.0.0.0",
        port=9,
        host_address="127.0.0.2",
        host_port=10,
        host_token_file=tmp_path / "a",
        api_keys=("k",),
        drain_seconds=2.5,
        keep_alive=2.0,
        share_prefix_cache=True,
    )
    assert settings == Settings(
        device="cuda",
        line=0.75,
        sleepers=8 * 2**30,
        minimum_residency=5,
        service_slice=6,
        patience=7,
        wait_seconds=8,
        max_waiting=9,
        max_waiting_bytes=2**20,
        load_seconds=11,
    )


def test_the_host_api_is_where_the_other_one_is_unless_told() -> None:
    assert parse("--host", "10.0.0.1")[0].inner_address == "10.0.0.1"
    assert parse("--host", "10.0.0.1", "--host-address", "10.0.0.2")[0].inner_address == "10.0.0.2"


def test_hashes_of_tokens_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLIMSOLL_HOST_TOKENS", " all ")
    assert parse()[0].host_token_hashes == "all"


def test_a_line_may_be_an_amount(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pressure, "host_memory_left", lambda: 10 * 2**30)
    assert parse("--line", "2GiB", "--sleepers", "2GiB")[1].line == 0.25
    with pytest.raises(UsageError, match=r"--line 9GiB is more than the 8\.0 GiB of free memory apart from --sleepers"):
        parse("--line", "9GiB", "--sleepers", "2GiB")


def test_models_are_read_from_files(tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text(MODELS)
    config, _ = parse("--models", str(tmp_path / "models.yaml"))
    ((name, spec),) = config.models
    assert name == ModelName("team", "small")
    assert (spec.source, spec.served_names, spec.minimum_kv) == ("demo://gemma-3-270m", ("gemma", "g"), "64MiB")
    assert spec.runtime == {"maxModelLen": 512, "maxWaiting": 7}


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--line", "101%"], "at most 100%"),
        (["--line", "much"], "not an amount of memory"),
        (["--sleepers", "10%"], "write an amount like 2GiB"),
        (["--keep-alive-seconds", "0"], "less than 0.1 seconds"),
        (["--hold-seconds", "-1"], "not between 0 and 86400"),
        (["--host-port", "70000"], "not between 0 and 65535"),
        (["--max-held", "-1"], "not between 0"),
        (["--device", "gpu"], "invalid choice: 'gpu' (choose from"),
    ],
)
def test_impossible_values_are_refused(words: list[str], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["host", *words])
    assert caught.value.code == 2
    assert what in capsys.readouterr().err


def test_what_cannot_be_opened_has_an_exit_code_and_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PLIMSOLL_TERMINATION_LOG", str(tmp_path / "log"))
    words = ["host", "--port", "0", "--host-port", "0", "--host-token-file", str(tmp_path / "none")]
    assert main(words) == 2
    assert f"the token file {tmp_path}/none cannot be used" in capsys.readouterr().err
    assert (tmp_path / "log").read_text().startswith(f"usage: the token file {tmp_path}/none cannot be used")


def test_the_help_shows_requests_that_work() -> None:
    assert "/host/v1/report" in host_module.DESCRIPTION
    assert "-X PUT http://127.0.0.1:8100/host/v1/models/default/gemma" in host_module.DESCRIPTION
