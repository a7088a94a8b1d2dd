"""Writes an image as an OCI archive (one tar), which both containerd and buildah can import."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

LAYER = "application/vnd.oci.image.layer.v1.tar"
CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Image:
    """`reference` is the full name, with registry and tag. `layers` are uncompressed tars, lowest first."""

    reference: str
    layers: Sequence[Path]
    command: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Blob:
    """A part of the archive, with its descriptor for manifests."""

    kind: str
    digest: str
    size: int

    def descriptor(self) -> dict[str, object]:
        return {"mediaType": self.kind, "digest": f"sha256:{self.digest}", "size": self.size}

    @property
    def path(self) -> str:
        return f"blobs/sha256/{self.digest}"


def write_archive(image: Image, target: Path) -> None:
    """Write the archive to `target`."""
    layers = [describe_layer(path) for path in image.layers]
    config = encode(image_config(image, layers))
    config_blob = describe(CONFIG, config)
    manifest = encode(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config_blob.descriptor(),
            "layers": [layer.descriptor() for layer in layers],
        }
    )
    manifest_blob = describe(MANIFEST, manifest)
    with tarfile.open(target, "w") as archive:
        add_bytes(archive, "oci-layout", encode({"imageLayoutVersion": "1.0.0"}))
        add_bytes(archive, "index.json", encode(image_index(image.reference, manifest_blob)))
        add_bytes(archive, config_blob.path, config)
        add_bytes(archive, manifest_blob.path, manifest)
        for path, layer in zip(image.layers, layers, strict=True):
            archive.add(path, arcname=layer.path)


def image_config(image: Image, layers: Sequence[Blob]) -> dict[str, object]:
    env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **image.env}
    machine = platform.machine()
    return {
        "architecture": ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": {"Cmd": list(image.command), "Env": [f"{name}={value}" for name, value in env.items()]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.digest}" for layer in layers]},
        # Buildah rejects a base image whose history has fewer entries than layers.
        "history": [{"created_by": "e2e/cluster"} for _ in layers],
    }


def image_index(reference: str, manifest: Blob) -> dict[str, object]:
    """Return the OCI index of an archive with one image. containerd reads the image's name from the first annotation,
    the containers/ tools from the second.
    """
    names = {"io.containerd.image.name": reference, "org.opencontainers.image.ref.name": reference}
    return {"schemaVersion": 2, "mediaType": INDEX, "manifests": [{**manifest.descriptor(), "annotations": names}]}


def encode(document: Mapping[str, object]) -> bytes:
    return json.dumps(document).encode()


def describe(kind: str, content: bytes) -> Blob:
    return Blob(kind, hashlib.sha256(content).hexdigest(), len(content))


def describe_layer(path: Path) -> Blob:
    with path.open("rb") as stream:
        return Blob(LAYER, hashlib.file_digest(stream, "sha256").hexdigest(), path.stat().st_size)


def add_bytes(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def write_layer(target: Path, files: Mapping[str, Path], links: Mapping[str, str], folders: Sequence[str]) -> None:
    """Write a layer with files (name in the image -> source), symbolic links (name -> target) and world-writable
    folders. Owners and times are fixed, so that equal content has an equal digest.
    """
    with tarfile.open(target, "w") as archive:
        for name in folders:
            member = tarfile.TarInfo(name)
            member.type, member.mode = tarfile.DIRTYPE, 0o1777
            archive.addfile(member)
        for name, source in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = source.stat().st_size, 0o755
            with source.open("rb") as stream:
                archive.addfile(member, stream)
        for name, pointed in links.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.mode = tarfile.SYMTYPE, pointed, 0o777
            archive.addfile(member)
