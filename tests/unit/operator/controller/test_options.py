"""The command line of the operator."""

from __future__ import annotations

import pytest

from plimsoll_operator.controller.options import MAX_ROLLING, parse_options
from plimsoll_operator.spec.identity import ObjectKey

LEAST = ["--runtime-image", "reg/rt:1", "--lease-namespace", "system"]


def test_the_least() -> None:
    options = parse_options(LEAST)
    assert (options.image.reference, options.image.pull_policy) == ("reg/rt:1", "IfNotPresent")
    assert options.namespaces is None
    assert options.lease == ObjectKey("system", "plimsoll-operator")
    assert options.health_port == 8080
    assert (options.deployment, options.max_rolling) == (None, MAX_ROLLING)


def test_namespaces_add_up() -> None:
    assert parse_options([*LEAST, "--namespace", "a", "--namespace", "b"]).namespaces == ("a", "b")
    assert parse_options([*LEAST, "--all-namespaces"]).namespaces is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--lease-namespace", "system"], "arguments are required: --runtime-image"),
        (["--runtime-image", "reg/rt:1"], "arguments are required: --lease-namespace"),
        ([*LEAST, "--namespace", "a", "--all-namespaces"], "--namespace and --all-namespaces exclude each other"),
        ([*LEAST, "--image-pull-policy", "Sometimes"], "invalid choice: 'Sometimes'"),
        ([*LEAST, "--no-such-option"], "--no-such-option"),
        ([*LEAST, "--external-scaler-port", "8083"], "--external-scaler-port needs --gateways"),
        ([*LEAST, "--log-format", "xml"], "invalid choice: 'xml'"),
        ([*LEAST, "--health-port", "99999"], "'99999' is not a port"),
        ([*LEAST, "--health-port", "http"], "'http' is not a port"),
        ([*LEAST, "--max-rolling-models", "0"], "'0' is not a whole number from 1"),
        ([*LEAST, "--all-name"], "unrecognized arguments"),
    ],
)
def test_what_is_wrong_is_named(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse_options(arguments)
    assert end.value.code == 2
    assert words in capsys.readouterr().err
