"""Self-contained kubeconfigs: one file is all that a client needs."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from cluster.addresses import API_PORT, CONTROL_PLANE
from cluster.files import write
from cluster.pki import Authority


def embedded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def write_kubeconfig(path: Path, authority: Authority, identity: str) -> Path:
    """Write a kubeconfig for the identity of that name (JSON, which is YAML), readable only by its owner."""
    cluster = {
        "server": f"https://{CONTROL_PLANE}:{API_PORT}",
        "certificate-authority-data": embedded(authority.certificate),
    }
    user = {
        "client-certificate-data": embedded(authority.certificate_of(identity)),
        "client-key-data": embedded(authority.key_of(identity)),
    }
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "plimsoll", "cluster": cluster}],
        "users": [{"name": identity, "user": user}],
        "contexts": [{"name": "plimsoll", "context": {"cluster": "plimsoll", "user": identity}}],
        "current-context": "plimsoll",
    }
    return write(path, json.dumps(document, indent=1), mode=0o600)
