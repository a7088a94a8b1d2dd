"""Keys and certificates, created for each cluster with the openssl command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.files import write
from cluster.shell import run

DAYS = "365"
CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
# openssl's default configuration would add CA extensions to every certificate.
CONFIGURATION = "[req]\ndistinguished_name = subject\n[subject]\n"


@dataclass(frozen=True)
class Identity:
    """Content of a certificate: `subject` in openssl's notation (/O=group/CN=name), alternative names like `DNS:x`,
    `IP:y`.
    """

    name: str
    subject: str
    alternatives: Sequence[str] = ()


@dataclass(frozen=True)
class Authority:
    """A certificate authority in a folder, with `ca.crt`, `ca.key`, and the certificates it has signed."""

    folder: Path

    @property
    def certificate(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def key(self) -> Path:
        return self.folder / "ca.key"

    def create(self) -> None:
        """Create the authority, and the key pair that signs service account tokens."""
        self.folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        write(self.folder / "openssl.cnf", CONFIGURATION)
        constraints = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=keyCertSign,cRLSign")
        self._request("ca", "/CN=plimsoll-cluster", constraints)
        private = self.folder / "service-accounts.key"
        run(["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", private])
        run(["openssl", "pkey", "-in", private, "-pubout", "-out", self.folder / "service-accounts.pub"])

    def issue(self, identity: Identity) -> None:
        """Write NAME.crt and NAME.key, valid for servers and clients."""
        extensions = ["basicConstraints=critical,CA:FALSE", "extendedKeyUsage=serverAuth,clientAuth"]
        if identity.alternatives:
            extensions.append("subjectAltName=" + ",".join(identity.alternatives))
        options = [word for extension in extensions for word in ("-addext", extension)]
        self._request(identity.name, identity.subject, ["-CA", self.certificate, "-CAkey", self.key, *options])

    def certificate_of(self, name: str) -> Path:
        return self.folder / f"{name}.crt"

    def key_of(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def _request(self, name: str, subject: str, options: Sequence[str | Path]) -> None:
        request = ["openssl", "req", "-x509", "-days", DAYS, "-config", f"{self.folder / 'openssl.cnf'}", *CURVE]
        outputs = ["-keyout", f"{self.key_of(name)}", "-out", f"{self.certificate_of(name)}"]
        run([*request, "-subj", subject, *outputs, *options])
