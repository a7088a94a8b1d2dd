"""Archives that both containerd and buildah accept: every digest must match its bytes."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

from cluster.oci import Image, write_archive, write_layer


def make_layer(folder: Path, name: str, content: str) -> Path:
    source = folder / f"{name}.txt"
    source.write_text(content)
    layer = folder / f"{name}.tar"
    write_layer(layer, {f"bin/{name}": source}, {f"bin/{name}-link": name}, ["tmp"])
    return layer


def read(archive: tarfile.TarFile, name: str) -> bytes:
    stream = archive.extractfile(name)
    assert stream is not None
    return stream.read()


def blob(archive: tarfile.TarFile, descriptor: dict[str, Any]) -> bytes:
    """Return a blob by its descriptor, after checking its digest and size."""
    content = read(archive, "blobs/" + descriptor["digest"].replace(":", "/"))
    assert hashlib.sha256(content).hexdigest() == descriptor["digest"].removeprefix("sha256:")
    assert len(content) == descriptor["size"]
    return content


def test_everything_in_an_archive_is_what_its_descriptor_says(tmp_path: Path) -> None:
    layers = [make_layer(tmp_path, "one", "1"), make_layer(tmp_path, "two", "22")]
    target = tmp_path / "image.tar"
    write_archive(Image("example.test/thing:v1", layers, command=["/bin/one"], env={"LANG": "C.UTF-8"}), target)
    with tarfile.open(target) as archive:
        assert json.loads(read(archive, "oci-layout")) == {"imageLayoutVersion": "1.0.0"}
        (listed,) = json.loads(read(archive, "index.json"))["manifests"]
        assert listed["annotations"]["io.containerd.image.name"] == "example.test/thing:v1"
        manifest = json.loads(blob(archive, listed))
        config = json.loads(blob(archive, manifest["config"]))
        contents = [blob(archive, layer) for layer in manifest["layers"]]
    assert contents == [layer.read_bytes() for layer in layers]
    assert config["rootfs"]["diff_ids"] == [layer["digest"] for layer in manifest["layers"]]
    assert len(config["history"]) == len(layers), "buildah builds on no image whose history lacks a layer"
    assert config["config"]["Cmd"] == ["/bin/one"]
    assert "LANG=C.UTF-8" in config["config"]["Env"]
    assert config["os"] == "linux"


def test_a_layer_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    first = make_layer(tmp_path, "one", "1").read_bytes()
    (tmp_path / "one.txt").touch()
    assert make_layer(tmp_path, "one", "1").read_bytes() == first


def test_a_layer_holds_programs_links_and_open_folders(tmp_path: Path) -> None:
    with tarfile.open(make_layer(tmp_path, "one", "1")) as layer:
        assert layer.getmember("bin/one").mode == 0o755
        assert layer.getmember("bin/one-link").linkname == "one"
        assert layer.getmember("tmp").mode == 0o1777
