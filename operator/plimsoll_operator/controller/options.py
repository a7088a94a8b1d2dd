"""The operator's command line."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from plimsoll_cluster.served_names.options import add_name_options
from plimsoll_cluster.served_names.rules import NameRules
from plimsoll_operator.build.image import Image
from plimsoll_operator.scaling.poller import Gateways, gateways
from plimsoll_operator.spec.identity import ObjectKey
from plimsoll_operator.spec.profiles import NO_PROFILES, Profiles
from plimsoll_operator.spec.profiles_file import ProfilesError, read_profiles
from plimsoll_telemetry.log_format import FORMS, Form
from plimsoll_telemetry.settings import MOST_TRACES

MAX_ROLLING = 4
GRACE, MOST_GRACE = 86_400, 2_592_000
"""The default and the maximum of --name-grace-seconds."""
PULL_POLICIES = ("Always", "IfNotPresent", "Never")


@dataclass(frozen=True, slots=True)
class Options:
    """The operator's options. `namespaces` None means all.

    `name_rules` and `name_record` decide which namespace may have which served name. `name_grace`: how long a name
    stays with its namespace after the last object that claimed it is gone.
    """

    image: Image
    remote_code: bool
    max_rolling: int
    group_turns: bool
    namespaces: tuple[str, ...] | None
    name_rules: NameRules
    name_record: ObjectKey | None
    name_grace: timedelta
    lease: ObjectKey
    deployment: str | None
    health_port: int
    budgets: bool
    host_keys: Path | None
    gateways: Gateways | None
    external_scaler_port: int | None
    log_format: Form
    log_level: str
    profiles: Profiles = NO_PROFILES
    traces_per_second: float = MOST_TRACES


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    """Parse a command line; exit with 2 and a usage message if it is wrong."""
    parser = _parser()
    args = parser.parse_args(arguments)
    if args.namespace and args.all_namespaces:
        parser.error("--namespace and --all-namespaces exclude each other: give one of them")
    if args.external_scaler_port is not None and args.gateways is None:
        parser.error("--external-scaler-port needs --gateways, which report the demand")
    return Options(
        image=Image(
            args.runtime_image,
            args.image_pull_policy,
            tuple(args.allowed_image),
            fixed_user=not args.no_fixed_user,
        ),
        remote_code=args.trust_remote_code,
        max_rolling=args.max_rolling_models,
        group_turns=args.group_turns,
        namespaces=tuple(args.namespace) if args.namespace else None,
        name_rules=NameRules(args.name_rules),
        name_record=args.name_record,
        name_grace=timedelta(seconds=args.name_grace_seconds),
        lease=ObjectKey(args.lease_namespace, args.lease_name),
        deployment=args.deployment,
        health_port=args.health_port,
        budgets=not args.no_disruption_budgets,
        host_keys=args.host_keys,
        gateways=args.gateways,
        external_scaler_port=args.external_scaler_port,
        log_format=args.log_format,
        log_level=args.log_level,
        profiles=args.profiles,
        traces_per_second=args.traces_per_second,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="plimsoll-operator",
        description="Reconciles ModelDeployments and RuntimePools into runtime pods, and writes their status.",
        allow_abbrev=False,
    )
    _add_pods(parser)
    _add_cluster(parser)
    _add_pools_and_scaling(parser)
    parser.add_argument(
        "--traces-per-second",
        type=_traces,
        default=MOST_TRACES,
        metavar="N",
        help="most placement decisions traced in a second (default: %(default)s); the OTEL_* variables turn traces on",
    )
    parser.add_argument(
        "--log-format",
        choices=FORMS,
        default="text",
        help="json: one object for each line of the log, kopf's included (default: text)",
    )
    parser.add_argument("--log-level", choices=("DEBUG", "INFO", "WARNING", "ERROR"), default="INFO")
    return parser


def _add_pods(parser: argparse.ArgumentParser) -> None:
    """Add options of the pods that the operator creates."""
    parser.add_argument("--runtime-image", required=True, metavar="IMAGE", help="image of the runtime pods")
    parser.add_argument(
        "--image-pull-policy", choices=PULL_POLICIES, default="IfNotPresent", help="when the kubelet pulls it"
    )
    parser.add_argument(
        "--allowed-image",
        action="append",
        default=[],
        metavar="PREFIX",
        help="allow template.image from this registry, repository path or image; repeat for more (default: none)",
    )
    parser.add_argument(
        "--no-fixed-user",
        action="store_true",
        help="leave runAsUser, runAsGroup and fsGroup out of pods, for clusters that assign them (default: 65532)",
    )
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="allow spec.model.trustRemoteCode, which runs code from the model's repository (default: not allowed)",
    )
    parser.add_argument(
        "--max-rolling-models",
        type=_count,
        default=MAX_ROLLING,
        metavar="N",
        help="number of models that roll to a new runtime image at a time (default: %(default)s)",
    )
    parser.add_argument(
        "--group-turns",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="place groups of several pods (spec.parallel) one at a time, and delete one whose pods do not all get "
        "nodes; switch this off if another scheduler places whole groups (default: on)",
    )


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    """Add options of what the operator watches, and of its own objects."""
    parser.add_argument(
        "--namespace", action="append", metavar="NS", help="watch this namespace; repeat for more (default: all)"
    )
    parser.add_argument("--all-namespaces", action="store_true", help="watch all namespaces")
    add_name_options(parser)
    parser.add_argument(
        "--name-grace-seconds",
        type=_seconds,
        default=GRACE,
        metavar="S",
        help="seconds that a name in --name-record stays with its namespace without an object (default: %(default)s)",
    )
    parser.add_argument("--lease-namespace", required=True, metavar="NS", help="namespace of the Lease")
    parser.add_argument("--lease-name", default="plimsoll-operator", metavar="NAME", help="name of the Lease")
    parser.add_argument(
        "--deployment", metavar="NAME", help="the operator's own Deployment, which owns the Lease if it must be created"
    )
    parser.add_argument(
        "--health-port", type=_port, default=8080, metavar="PORT", help="port of /live, /health and /metrics"
    )
    parser.add_argument(
        "--no-disruption-budgets",
        action="store_true",
        help="create no PodDisruptionBudgets, and delete existing ones of the operator",
    )


def _add_pools_and_scaling(parser: argparse.ArgumentParser) -> None:
    """Add options of features beyond the API server: RuntimePools, scaling, KEDA, profiles."""
    parser.add_argument(
        "--host-keys",
        type=Path,
        metavar="FOLDER",
        help="folder whose file `operator` has the key for tokens of RuntimePools' pods (default: none, and no "
        "RuntimePools are served)",
    )
    parser.add_argument(
        "--gateways",
        type=gateways,
        metavar="NAME:PORT",
        help="headless Service of all gateways, and their metrics port, to poll for the demand of models with "
        "spec.scaling (default: none, and these models keep their replicas)",
    )
    parser.add_argument(
        "--external-scaler-port",
        type=_port,
        metavar="PORT",
        help="serve KEDA as an external scaler on this port, with the demand from --gateways (default: none)",
    )
    parser.add_argument(
        "--profiles",
        type=_profiles,
        default=NO_PROFILES,
        metavar="FILE",
        help="JSON file with defaults for the pods of models and pools, and the profiles of resources.profile; read at "
        "the start (default: none)",
    )


def _count(text: str) -> int:
    if re.fullmatch("[1-9][0-9]{0,5}", text) is None:
        raise argparse.ArgumentTypeError(f"{text[:64]!r} is not a whole number from 1 to 999999")
    return int(text)


def _profiles(text: str) -> Profiles:
    try:
        return read_profiles(Path(text))
    except ProfilesError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _seconds(text: str) -> int:
    if re.fullmatch("[0-9]{1,7}", text) is None or int(text) > MOST_GRACE:
        raise argparse.ArgumentTypeError(f"{text[:64]!r} is not a whole number of seconds from 0 to {MOST_GRACE}")
    return int(text)


def _traces(text: str) -> float:
    if re.fullmatch("[0-9]{1,6}([.][0-9]{1,3})?", text) is None:
        raise argparse.ArgumentTypeError(f"{text[:64]!r} is not a number of traces from 0 to 999999")
    return float(text)


def _port(text: str) -> int:
    if re.fullmatch("[0-9]{1,5}", text) is None or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text[:64]!r} is not a port, a whole number from 0 to 65535")
    return int(text)
