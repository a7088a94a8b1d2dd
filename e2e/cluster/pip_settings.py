"""The machine's own pip configuration, for image builds: which index, which proxy.

It is mounted while an image is built and never becomes part of it.
"""

from __future__ import annotations

import configparser
from collections.abc import Iterable, Mapping
from pathlib import Path

# Where pip looks, least important first.
FILES = ("/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf")
# What decides where packages come from. Everything else (caches, targets, colours) is the host's own business.
KEPT = (
    "index-url",
    "extra-index-url",
    "find-links",
    "trusted-host",
    "proxy",
    "timeout",
    "default-timeout",
    "retries",
)


def settings(texts: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """What configuration files and PIP_* variables say together: variables win, then later files."""
    found: dict[str, str] = {}
    for text in texts:
        config = configparser.RawConfigParser()
        config.read_string(text)
        for section in ("global", "install"):
            if config.has_section(section):
                found.update(config.items(section))
    prefix = "PIP_"
    for name, value in environ.items():
        if name.startswith(prefix):
            found[name.removeprefix(prefix).lower().replace("_", "-")] = value
    return {name: found[name] for name in KEPT if name in found}


def read_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """This machine's settings."""
    names = [*FILES, *filter(None, [environ.get("PIP_CONFIG_FILE")])]
    paths = [Path(name).expanduser() for name in names]
    return settings([path.read_text() for path in paths if path.is_file()], environ)


def local_links(found: Mapping[str, str]) -> list[Path]:
    """Folders of wheels among the settings, where they hold anything: an image build must see them too."""
    paths = [Path(word.removeprefix("file://")) for word in found.get("find-links", "").split()]
    return [path for path in paths if path.is_absolute() and path.is_dir() and any(path.iterdir())]


def render(found: Mapping[str, str], certificates: Path | None) -> str:
    """A pip.conf. `certificates`: the bundle of authorities as the image build sees it."""
    values = dict(found)
    if "find-links" in values:
        values["find-links"] = " ".join(
            word for word in values["find-links"].split() if "://" in word or Path(word) in local_links(found)
        )
    if certificates:
        values["cert"] = str(certificates)
    lines = [f"{name} = {' '.join(value.split())}" for name, value in values.items() if value]
    return "\n".join(["[global]", *lines, ""])
