"""Where a replica is, as its URL says."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Origin:
    """`name`: what the Host header says. `prefix`: the path of the URL, to which those of requests are added."""

    host: str
    port: int
    tls: bool
    name: bytes
    prefix: bytes


def read_origin(url: str) -> Origin:
    """The origin of an http or https URL. Raises ValueError where there is no host, or the port is none."""
    parts = urlsplit(url)
    if not parts.hostname:
        raise ValueError(f"{url!r} names no host")
    tls = parts.scheme == "https"
    name = parts.netloc.rpartition("@")[2]
    return Origin(parts.hostname, parts.port or (443 if tls else 80), tls, name.encode("idna"), parts.path.encode())
