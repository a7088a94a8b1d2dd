"""The mirror is read from every format of apt configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.debian import find_mirror, mirrors_of_list, mirrors_of_sources
from cluster.errors import ClusterError

LIST = """\
# deb http://commented.example/debian bookworm main
deb-src http://source.example/debian bookworm main
deb http://security.example/debian bookworm-security main
deb http://contrib.example/debian bookworm contrib
deb [signed-by=/usr/share/keyrings/x.gpg arch=amd64] http://mirror.example/debian bookworm main contrib
"""

SOURCES = """\
Types: deb
Enabled: no
URIs: http://off.example/debian
Suites: bookworm
Components: main

# a comment between paragraphs
Types: deb
# URIs: http://commented.example/debian
URIs: http://one.example/debian
  http://two.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/x.gpg
"""


def test_the_one_line_form_needs_suite_and_component() -> None:
    assert list(mirrors_of_list(LIST, "bookworm")) == ["http://mirror.example/debian"]


def test_the_paragraph_form_skips_what_is_off_and_joins_continued_lines() -> None:
    assert list(mirrors_of_sources(SOURCES, "bookworm")) == [
        "http://one.example/debian",
        "http://two.example/debian",
    ]
    assert list(mirrors_of_sources(SOURCES, "trixie")) == []


def test_both_forms_are_looked_for_where_apt_looks(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d" / "debian.sources").write_text(SOURCES)
    (tmp_path / "sources.list.d" / "old.list.disabled").write_text("deb http://disabled.example/debian bookworm main")
    assert find_mirror("bookworm", apt=tmp_path) == "http://one.example/debian"
    (tmp_path / "sources.list").write_text(LIST)
    assert find_mirror("bookworm", apt=tmp_path) == "http://mirror.example/debian"


def test_no_mirror_is_an_error_that_names_the_line_to_add(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="bookworm main"):
        find_mirror("bookworm", apt=tmp_path)
