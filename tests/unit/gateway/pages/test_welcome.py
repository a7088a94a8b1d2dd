"""GET /: the page for browsers and programs."""

from typing import Any

from plimsoll_gateway.discovery.routing_table import Model, ObjectKey, build_table

BROWSER = {"accept": "text/html,*/*;q=0.8"}


async def get(world: Any, headers: dict[str, str], method: str = "GET") -> tuple[int, dict[str, str], str]:
    async with world.client.request(method, f"{world.url}/", headers=headers) as response:
        told = {name.lower(): value for name, value in response.headers.items()}
        return response.status, told, await response.text()


def show(world: Any, *names: str) -> None:
    world.store.replace(
        build_table([Model(ObjectKey("ns", f"m{n}"), (name,), 1.0, "", ()) for n, name in enumerate(names)])
    )


async def test_browsers_get_a_page_and_programs_json(world: Any) -> None:
    status, _, early = await get(world, BROWSER)
    assert (status, "There is no model yet" in early) == (200, True)
    show(world, "<b>bold</b>", "plain")
    status, headers, page = await get(world, BROWSER)
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert headers["content-security-policy"].startswith("default-src 'none'")
    assert "&lt;b&gt;bold&lt;/b&gt;" in page
    assert "<b>" not in page
    assert 'href="docs"' in page
    assert f"curl {world.url}/v1/chat/completions -H" in page
    status, headers, text = await get(world, {"accept": "*/*"})
    assert (status, headers["content-type"]) == (200, "application/json")
    assert text == (
        '{"name": "Plimsoll gateway", "models": ["<b>bold</b>", "plain"], "api": "/v1", "docs": "/docs", '
        '"openapi": "/openapi.json"}'
    )
    status, headers, text = await get(world, BROWSER, "HEAD")
    assert (status, headers["content-length"], text) == (200, str(len(page.encode())), "")
    assert (await get(world, BROWSER, "POST"))[0] == 405
    _, _, page = await get(world, BROWSER | {"host": "<script>x</script>"})
    assert "curl http://HOST/v1" in page
    assert "<script" not in page
