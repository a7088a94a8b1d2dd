"""The part of the machine's pip configuration that image builds use."""

from __future__ import annotations

import configparser
from pathlib import Path

from cluster.pip_settings import local_links, render, settings

SYSTEM = "[global]\nindex-url = https://one.example/simple\nno-cache-dir = true\n"
USER = "[global]\nindex-url = https://two.example/simple\n[install]\nextra-index-url =\n  https://a.example\n  https://b.example\n"


def parse(text: str) -> dict[str, str]:
    config = configparser.RawConfigParser()
    config.read_string(text)
    return dict(config.items("global"))


def test_later_files_win_and_variables_win_over_files() -> None:
    assert settings([SYSTEM, USER], {})["index-url"] == "https://two.example/simple"
    environ = {"PIP_INDEX_URL": "https://three.example/simple", "HOME": "/nowhere"}
    assert settings([SYSTEM, USER], environ)["index-url"] == "https://three.example/simple"


def test_only_what_says_where_packages_come_from_is_kept() -> None:
    assert set(settings([SYSTEM, USER], {"PIP_TARGET": "/x"})) == {"index-url", "extra-index-url"}


def test_lists_stay_lists_and_the_bundle_is_the_builds_own() -> None:
    text = render(settings([USER], {"PIP_CERT": "/host/only.pem"}), Path("/etc/ssl/bundle.crt"))
    found = parse(text)
    assert found["extra-index-url"].split() == ["https://a.example", "https://b.example"]
    assert found["cert"] == "/etc/ssl/bundle.crt"


def test_a_folder_of_wheels_is_passed_on_only_where_it_holds_any(tmp_path: Path) -> None:
    empty, full = tmp_path / "empty", tmp_path / "full"
    empty.mkdir()
    full.mkdir()
    (full / "thing.whl").touch()
    found = settings([], {"PIP_FIND_LINKS": f"{empty} {full} https://wheels.example/"})
    assert local_links(found) == [full]
    assert parse(render(found, None))["find-links"].split() == [str(full), "https://wheels.example/"]


def test_a_machine_without_settings_gives_an_empty_file() -> None:
    assert render(settings([], {}), None) == "[global]\n"
