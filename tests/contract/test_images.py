"""The two images do not contain each other's heavy libraries, and their builds see the files that they copy."""

import re
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
DOCKERFILES = {"operator": ROOT / "operator" / "Dockerfile", "runtime": ROOT / "runtime" / "Dockerfile"}


def needed(name: str, extra: str) -> Iterator[tuple[str, str]]:
    """Yield the direct requirements of a distribution with one extra ("" for none), each with its extras."""
    for text in distribution(name).requires or []:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield from ((canonicalize_name(requirement.name), wanted) for wanted in ("", *requirement.extras))


def closure(extra: str) -> set[str]:
    """Return every distribution that `pip install plimsoll-serving[extra]` installs."""
    found: set[tuple[str, str]] = set()
    todo = [("plimsoll-serving", extra)]
    while todo:
        item = todo.pop()
        if item not in found:
            found.add(item)
            todo.extend(needed(*item))
    return {name for name, _ in found}


@pytest.mark.parametrize(
    ("extra", "has", "has_not"),
    [
        ("operator", {"kubernetes", "aiohttp", "msgspec"}, {"torch", "triton", "transformers", "numpy"}),
        ("runtime", {"torch", "transformers", "aiohttp"}, {"kubernetes"}),
    ],
)
def test_the_extras_stay_apart(extra: str, has: set[str], has_not: set[str]) -> None:
    installed = closure(extra)
    assert has <= installed
    assert not has_not & installed


def test_everything_that_is_installed_is_pinned() -> None:
    pins = re.findall(r"^([A-Za-z0-9._-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    pinned = {canonicalize_name(name) for name in pins}
    of_torch = {name for name in closure("dev") if name.startswith(("nvidia-", "cuda-"))}
    assert closure("dev") - of_torch - {"plimsoll-serving"} <= pinned


@pytest.mark.parametrize("image", sorted(DOCKERFILES))
def test_a_build_sees_what_it_copies(image: str) -> None:
    seen = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copies = re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILES[image].read_text(), re.MULTILINE)
    assert copies
    for copy in copies:
        for source in copy.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert source.split("/")[0] in seen, f"{source} is excluded from the build by .dockerignore"


def test_the_images_run_as_the_user_that_pods_run_as() -> None:
    for path in DOCKERFILES.values():
        assert re.findall(r"^USER (.+)$", path.read_text(), re.MULTILINE) == ["65532:65532"]


def test_the_runtimes_image_runs_as_a_user_that_it_does_not_know() -> None:
    """Without a line in /etc/passwd, Path.home and getuser of libraries read these variables or fail."""
    lines = DOCKERFILES["runtime"].read_text()
    assert re.search(r"^    HOME=/tmp \\$", lines, re.MULTILINE)
    assert re.search(r"^    LOGNAME=plimsoll \\$", lines, re.MULTILINE)
