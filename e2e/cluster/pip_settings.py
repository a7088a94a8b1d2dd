"""The host's pip configuration (index, proxy) for image builds. It is mounted during a build and never becomes part of
the image.
"""

from __future__ import annotations

import configparser
from collections.abc import Iterable, Mapping
from pathlib import Path

# pip's configuration files, with increasing precedence.
FILES = ("/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf")
# Settings that select the source of packages. Others (caches, targets, colours) do not apply to builds.
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
    """Merge configuration files and PIP_* variables: variables take precedence, then later files."""
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
    """Return the host's pip settings, from its configuration files and the PIP_* variables of `environ`."""
    names = [*FILES, *filter(None, [environ.get("PIP_CONFIG_FILE")])]
    paths = [Path(name).expanduser() for name in names]
    return settings([path.read_text() for path in paths if path.is_file()], environ)


def local_links(found: Mapping[str, str]) -> list[Path]:
    """Return the folders of wheels on the host, if not empty, that find-links names: an image build needs them too."""
    paths = [Path(word.removeprefix("file://")) for word in found.get("find-links", "").split()]
    return [path for path in paths if path.is_absolute() and path.is_dir() and any(path.iterdir())]


def render(found: Mapping[str, str], certificates: Path | None) -> str:
    """Return a pip.conf. `certificates`: path of the certificate bundle within the image build. Local find-links that
    are missing or empty are left out.
    """
    values = dict(found)
    if "find-links" in values:
        values["find-links"] = " ".join(
            word for word in values["find-links"].split() if "://" in word or Path(word) in local_links(found)
        )
    if certificates:
        values["cert"] = str(certificates)
    lines = [f"{name} = {' '.join(value.split())}" for name, value in values.items() if value]
    return "\n".join(["[global]", *lines, ""])
