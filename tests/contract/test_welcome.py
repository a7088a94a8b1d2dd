"""Gateway and runtime render the page at / from one template identically."""

from __future__ import annotations

import json
import shlex
from html import unescape

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_gateway.pages import welcome as gateway
from plimsoll_runtime.api.openapi import welcome as runtime
from plimsoll_runtime.api.openapi.gateway_pages import ABOUT, TITLE
from plimsoll_runtime.api.schemas.outputs import Welcome

HOSTILE = st.text(
    st.sampled_from("ab.:-_/[]0'\"<>&$`;\\|\n ") | st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12
)
NAMES = (
    st.none() | st.lists(HOSTILE, max_size=3) | st.integers(49, 53).map(lambda count: [f"m{n}" for n in range(count)])
)
HOSTS = (
    st.sampled_from(["localhost:8000", "127.0.0.1", "[::1]:8000", "a.b", "x'; rm -rf ~", 'a"b', "a:b", ""]) | HOSTILE
)


@given(
    NAMES, st.none() | HOSTS, st.sampled_from(["http", "https"]), st.sampled_from([None, "https", "x"]), st.booleans()
)
def test_the_gateways_page_is_the_runtimes(
    names: list[str] | None, host: str | None, scheme: str, forwarded: str | None, key: bool
) -> None:
    base = runtime.base_url(host, scheme, forwarded)
    assert gateway.base_url(host, scheme, forwarded) == base
    asks = runtime.chat_with(names[0] if names else None)
    expected = runtime.page(runtime.template(TITLE, ABOUT) + "\n", names, base, asks, key=key)
    assert gateway.welcome_page(names, base, key=key).decode() == expected
    told = Welcome(TITLE, msgspec.UNSET if names is None else names)
    assert json.loads(gateway.welcome_json(names)) == msgspec.to_builtins(told)


@given(NAMES, st.none() | HOSTS, st.booleans())
def test_nothing_of_a_client_becomes_markup_or_more_than_one_command(
    names: list[str] | None, host: str | None, key: bool
) -> None:
    page = gateway.welcome_page(names, gateway.base_url(host, "http", None), key=key).decode()
    plain = gateway.welcome_page(["m"] * len(names) if names else names, "http://h", key=key).decode()
    assert page.count("<") == plain.count("<")
    command = unescape(page.partition("<pre><code>")[2].partition("</code>")[0])
    words = shlex.split(command, comments=False)
    assert words[0] == "curl"
    assert words[1].startswith("http://")
    assert not set(words[1]) & set("'\"<>&$`;\\|\n ()")
    assert words[2:-2] == [
        *(["-H", "Authorization: Bearer $PLIMSOLL_API_KEY"] if key else []),
        "-H",
        "Content-Type: application/json",
    ]
    assert words[-2] == "-d"
    assert json.loads(words[-1])["model"] == (names[0] if names else "MODEL")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["text/html", "TEXT/HTML", "application/json", "*/*", "image/png", "", "text/*"]),
            st.sampled_from(["", ";q=0", ";q=0.5", "; q=1", ";q=x", ";q=9", ";level=1;q=0.1"]),
        ),
        max_size=4,
    )
)
def test_both_choose_the_page_for_the_same_clients(accepted: list[tuple[str, str]]) -> None:
    accept = ", ".join(kind + weight for kind, weight in accepted)
    assert gateway.wants_page(accept) == runtime.wants_page(accept)


def test_who_gets_the_page() -> None:
    browsers = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
    wanted = {browsers: True, "text/html": True, "*/*": False, "": False, "application/json": False}
    wanted |= {
        "text/html;q=0": False,
        "text/html;q=0.5, application/json": False,
        "application/json;q=0.5,text/html": True,
    }
    assert {accept: runtime.wants_page(accept) for accept in wanted} == wanted
