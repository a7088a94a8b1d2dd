"""etcd and kube-apiserver on loopback, from the binaries that `make cluster` builds."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from cluster.layout import find_layout
from cluster.packages import find
from cluster.shell import DIE_WITH_PARENT

RELEASE, RELEASE_NAMESPACE = "plimsoll", "plimsoll-system"
"""The chart's release whose rights the operators have."""
OPERATOR = f"system:serviceaccount:{RELEASE_NAMESPACE}:{RELEASE}-operator"
ADMIN, FIRST, SECOND, EDITOR = "admin", "operator-1", "operator-2", "editor"
"""Tokens. Two operator processes are one user with different uids; the editor has the rights of `edit`."""
ACCOUNTS = f"system:serviceaccounts,system:serviceaccounts:{RELEASE_NAMESPACE}"
USERS = {
    ADMIN: ("admin", "system:masters"),
    FIRST: (OPERATOR, ACCOUNTS),
    SECOND: (OPERATOR, ACCOUNTS),
    EDITOR: ("editor", "editors"),
}
WRITING = frozenset({"create", "update", "patch", "delete"})
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "users": [OPERATOR]}, {"level": "None"}],
}
START_SECONDS = 180.0
POLL_SECONDS = 0.1


class Missing(Exception):
    """A program is missing; the message says how to get it."""


@dataclass(frozen=True)
class Programs:
    """Paths of the programs."""

    kube: Path
    etcd: Path


def find_programs() -> Programs:
    """Return the programs. Raise Missing."""
    built = sorted(
        find_layout(os.environ, Path.home()).binaries.glob("kube-*/kube"), key=lambda path: path.stat().st_mtime
    )
    etcd = find("etcd")
    if not built or etcd is None:
        raise Missing("needs kube-apiserver and etcd: `make cluster` builds and installs them")
    if shutil.which(DIE_WITH_PARENT[0]) is None:
        raise Missing(f"needs {DIE_WITH_PARENT[0]} (util-linux)")
    return Programs(built[-1], Path(etcd))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class ApiServer:
    """A context: the server is ready in it, and stopped and deleted after it."""

    programs: Programs
    folder: Path
    port: int = field(default_factory=free_port)
    plugins: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    pids: dict[str, int] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def __enter__(self) -> ApiServer:
        storage, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        key = self.folder / "service-accounts.key"
        subprocess.run(
            ["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(key)],
            check=True,
            capture_output=True,
        )
        users = [f'{token},{name},{token},"{groups}"' for token, (name, groups) in USERS.items()]
        (self.folder / "tokens.csv").write_text("\n".join(users))
        (self.folder / "audit.json").write_text(json.dumps(AUDIT_POLICY))
        with ExitStack() as starting:
            starting.callback(shutil.rmtree, self.folder / "etcd", ignore_errors=True)
            self._spawn(
                starting,
                "etcd",
                [
                    str(self.programs.etcd),
                    f"--data-dir={self.folder / 'etcd'}",
                    f"--listen-client-urls={storage}",
                    f"--advertise-client-urls={storage}",
                    f"--listen-peer-urls={peers}",
                    "--unsafe-no-fsync",
                ],
            )
            api = self._spawn(
                starting,
                "kube-apiserver",
                [
                    str(self.programs.kube),
                    "kube-apiserver",
                    f"--etcd-servers={storage}",
                    f"--secure-port={self.port}",
                    "--bind-address=127.0.0.1",
                    f"--cert-dir={self.folder / 'certificates'}",
                    f"--token-auth-file={self.folder / 'tokens.csv'}",
                    "--authorization-mode=RBAC",
                    "--allow-privileged=true",
                    f"--audit-policy-file={self.folder / 'audit.json'}",
                    f"--audit-log-path={self.folder / 'audit.log'}",
                    "--audit-log-mode=blocking",
                    "--service-cluster-ip-range=198.19.0.0/16",
                    "--service-account-issuer=https://tests.invalid",
                    f"--service-account-key-file={key}",
                    f"--service-account-signing-key-file={key}",
                    # It requires a token for each namespace's default account, which a controller would create.
                    "--disable-admission-plugins=ServiceAccount",
                    *(f"--enable-admission-plugins={plugin}" for plugin in self.plugins),
                    *self.more,
                ],
            )
            self._await_ready(api)
            self._stack = starting.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def requests(self, user: str) -> list[dict[str, Any]]:
        """Return the requests of a token's bearer as audit events, oldest first, each once."""
        lines = (self.folder / "audit.log").read_text().splitlines()
        events = [event for event in map(json.loads, lines) if event["user"]["uid"] == user]
        return list({event["auditID"]: event for event in reversed(events)}.values())[::-1]

    def writes(self, user: str) -> list[dict[str, Any]]:
        """Return the requests that write."""
        return [event for event in self.requests(user) if event["verb"] in WRITING]

    def kubeconfig(self, user: str) -> Path:
        """Write a kubeconfig with one of the tokens."""
        path = self.folder / f"{user}.kubeconfig"
        cluster = {"server": self.url, "insecure-skip-tls-verify": True}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": user}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "current-context": "test",
        }
        path.write_text(json.dumps(document))
        return path

    def _spawn(self, stack: ExitStack, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        log = stack.enter_context((self.folder / f"{name}.log").open("wb"))
        process = subprocess.Popen([*DIE_WITH_PARENT, *command], stdout=log, stderr=log, cwd=self.folder)
        self.pids[name] = process.pid
        stack.callback(process.wait)
        stack.callback(process.kill)  # nothing that it has is to be kept
        return process

    def _await_ready(self, api: subprocess.Popen[bytes]) -> None:
        request = urllib.request.Request(f"{self.url}/readyz", headers={"Authorization": f"Bearer {ADMIN}"})
        context = ssl._create_unverified_context()

        def ready() -> bool:
            try:
                with urllib.request.urlopen(request, timeout=30, context=context):
                    return True
            except (urllib.error.URLError, OSError):
                if api.poll() is not None:
                    raise RuntimeError(f"kube-apiserver has ended:\n{self._log()}") from None
                return False

        if not until(ready):
            raise RuntimeError(f"kube-apiserver is not ready:\n{self._log()}")

    def _log(self) -> str:
        return (self.folder / "kube-apiserver.log").read_text()[-3000:]


def until(holds: Callable[[], bool], seconds: float = START_SECONDS) -> bool:
    """Poll until a condition holds. Return False if it does not in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True
