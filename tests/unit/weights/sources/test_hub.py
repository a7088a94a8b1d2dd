"""Hub models, fetched by the real client library in a separate process.

The library reads HF_ENDPOINT, HF_HUB_OFFLINE and other variables once, when it is imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Kind
from model_support.gguf_files import write_gguf
from model_support.hub import MAIN, OLD, TOKEN, Hub, serving
from model_support.tiny import make_model


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(Hub()) as made:
        yield made


SCRIPT = """
import os, sys
from plimsoll_runtime.errors import PlimsollError
from plimsoll_runtime.weights.sources.hub import Access
from plimsoll_runtime.weights.sources.resolve import resolve
namespace, _, token = os.environ.get("ACCESS", "").partition("/")
access = Access(namespace, token) if namespace else None
for model, revision in zip(sys.argv[1::2], sys.argv[2::2]):
    try:
        files = resolve(model, revision or None, access=access)
        print("found", files.name, files.root)
    except PlimsollError as error:
        print(type(error).__name__, error)
"""


def fetch(
    hub: Hub, home: Path, *models: str, revision: str = "", script: str = SCRIPT, **environment: str
) -> list[str]:
    """Fetch in a separate process. Return one line for each model."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and "proxy" not in k.lower()}
    settings = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    arguments = [part for model in models for part in (model, revision)]
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**inherited, **settings, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_model_is_fetched_once_and_then_found_without_the_hub(hub: Hub, tmp_path: Path) -> None:
    found = fetch(hub, tmp_path, "hf://org/model", "org/model")
    root = tmp_path / "hub" / "models--org--model" / "snapshots" / MAIN
    assert found == [f"found org/model {root}"] * 2
    assert sorted(p.name for p in root.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (root / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    hub.asked.clear()
    assert fetch(hub, tmp_path, "org/model", HF_HUB_OFFLINE="1") == found[:1]
    assert hub.asked == []
    assert fetch(hub, tmp_path, "org/model", HF_ENDPOINT="http://127.0.0.1:9") == found[:1]


REPORTS = """
import sys
from plimsoll_runtime.weights.sources.resolve import resolve
reports = []
resolve(sys.argv[1], on_transfer=reports.append)
print(*(f"{one.done}/{one.total}" for one in reports))
"""


def reports(hub: Hub, home: Path, model: str, **environment: str) -> list[list[int]]:
    """Return (bytes so far, total bytes) reported by a process that fetches a model."""
    [line] = fetch(hub, home, model, script=REPORTS, HF_HUB_DISABLE_PROGRESS_BARS="1", **environment)
    return [[int(number) for number in report.split("/")] for report in line.split()]


@pytest.mark.long
def test_a_download_tells_its_bytes(hub: Hub, tmp_path: Path) -> None:
    """The total counts all missing wanted files, including those whose download has not begun."""
    shards = {f"model-{index}.safetensors": os.urandom(12 * 2**20) for index in range(12)}
    hub.files = {**hub.files, **shards}
    kept = sum(len(hub.files[name]) for name in ("config.json", "model.safetensors", "tokenizer.json"))
    whole = sum(map(len, shards.values()))
    told = reports(hub, tmp_path, "org/model")
    assert {total for _, total in told} == {whole + kept}
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[0][0] < whole
    assert told[-1] == [whole + kept] * 2
    for path in [*(tmp_path / "hub").rglob("model-7.safetensors")]:
        path.resolve().unlink()
        path.unlink()
    assert reports(hub, tmp_path, "org/model")[-1] == [len(shards["model-7.safetensors"])] * 2
    assert fetch(hub, tmp_path, "org/model", script=REPORTS) == [""], "nothing is downloaded"


def test_modules_that_follow_a_model_are_fetched_with_it(hub: Hub, tmp_path: Path) -> None:
    rows = [{"type": "a.Transformer", "path": ""}, {"type": "a.Pooling", "path": "1_Pooling"}, {"path": "../up"}]
    hub.files = {
        **hub.files,
        "modules.json": json.dumps(rows).encode(),
        "1_Pooling/config.json": b"{}",
        "1_Pooling/pytorch_model.bin": b"not read",
    }
    fetch(hub, tmp_path, "hf://org/model")
    root = tmp_path / "hub" / "models--org--model" / "snapshots" / MAIN
    found = {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()}
    assert found >= {"modules.json", "1_Pooling/config.json"}
    assert not found & {"1_Pooling/pytorch_model.bin", "onnx/config.json"}


def test_revisions(hub: Hub, tmp_path: Path) -> None:
    by_name, by_option = (
        fetch(hub, tmp_path, "hf://org/model@v1"),
        fetch(hub, tmp_path, "hf://org/model", revision="v1"),
    )
    assert by_name == by_option
    assert by_name[0].endswith(OLD)
    both = fetch(hub, tmp_path, "hf://org/model@v2", "hf://org/model@v1@x")
    assert both[0] == "SourceError hf://org/model@v2: the hub has no revision 'v2' of this model"
    assert both[1].startswith("SourceError hf://org/model@v1@x: the hub has no revision")


def test_what_is_not_there_or_not_allowed(hub: Hub, tmp_path: Path) -> None:
    missing, private, gated, nonsense, empty = fetch(
        hub, tmp_path, "org/missing", "org/private", "org/gated", "no/such/model", "hf://"
    )
    assert missing == "SourceError hf://org/missing does not exist (or is private: set HF_TOKEN)"
    assert private == "SourceError hf://org/private does not exist (or is private: set HF_TOKEN)"
    assert gated == "SourceError hf://org/gated is gated: accept its terms on the hub and set HF_TOKEN"
    assert nonsense.startswith("SourceError 'no/such/model' is not a folder, a .gguf file or a Hugging Face id")
    assert empty.startswith("SourceError ")


def test_a_token_opens_what_is_private(hub: Hub, tmp_path: Path) -> None:
    opened = fetch(hub, tmp_path, "org/private", "org/gated", HF_TOKEN=TOKEN)
    assert [line.split()[:2] for line in opened] == [["found", "org/private"], ["found", "org/gated"]]
    [refused] = fetch(hub, tmp_path / "other", "org/private", HF_TOKEN="hf_wrong")
    assert refused.startswith("SourceError hf://org/private does not exist (or is private")


def test_what_one_namespace_has_fetched_is_in_nobody_elses_cache(hub: Hub, tmp_path: Path) -> None:
    """The library returns cached files without checking access rights."""
    own = f"team/{TOKEN}"
    [mine] = fetch(hub, tmp_path, "org/private", ACCESS=own)
    assert mine == f"found org/private {tmp_path}/private/team/models--org--private/snapshots/{MAIN}"
    refused = "SourceError hf://org/private does not exist (or is private: "
    others = [
        fetch(hub, tmp_path, "org/private"),
        fetch(hub, tmp_path, "org/private", ACCESS="guests/"),
        fetch(hub, tmp_path, "org/private", ACCESS="guests/hf_wrong"),
    ]
    assert [line.startswith(refused) for [line] in others] == [True] * 3, others
    [without], [wrong] = others[1:]
    assert without.endswith("set spec.model.tokenSecret)")
    assert wrong.endswith("check the token of spec.model.tokenSecret)")
    [again] = fetch(hub, tmp_path, "org/private", ACCESS=own, HF_HUB_OFFLINE="1")
    assert again == mine


def test_no_token_at_all_is_not_the_environments(hub: Hub, tmp_path: Path) -> None:
    [refused] = fetch(hub, tmp_path, "org/private", ACCESS="guests/", HF_TOKEN=TOKEN)
    assert refused.startswith("SourceError hf://org/private does not exist (or is private: set spec.model.tokenSecret")
    fetch(hub, tmp_path, "org/private", HF_TOKEN=TOKEN)  # the pool's models, in the shared cache
    [refused] = fetch(hub, tmp_path, "org/private", ACCESS="guests/")
    assert refused.startswith("SourceError hf://org/private does not exist (or is private: set spec.model.tokenSecret")


def test_a_token_is_in_no_error(hub: Hub, tmp_path: Path) -> None:
    """Also if the library's message contains it, such as the one about an invalid header."""
    for token in ("hf_wrongwrong", "hf_brokenbroken\nline"):
        for model in ("org/private", "org/gated", "org/missing"):
            [line] = fetch(hub, tmp_path, model, ACCESS=f"team/{token}")
            assert line.startswith("SourceError ")
            assert token.split("\n")[0] not in line
    hub.nonsense = True
    [line] = fetch(hub, tmp_path, "org/model", ACCESS="team/hf_wrongwrong")
    assert "hf_wrongwrong" not in line


def test_a_hub_that_cannot_be_reached(hub: Hub, tmp_path: Path) -> None:
    [nobody] = fetch(hub, tmp_path, "org/model", HF_ENDPOINT="http://127.0.0.1:9")
    assert nobody.startswith("FetchError hf://org/model is not in the cache and the hub cannot be reached (Got: Conn")
    assert nobody.endswith(
        "check the network, HF_ENDPOINT, HF_HUB_OFFLINE and HF_HOME; if you meant a folder, it does not exist"
    )
    [offline] = fetch(hub, tmp_path, "org/model", HF_HUB_OFFLINE="1")
    assert offline.startswith("SourceError "), "a later try would not help"
    assert "is not in the cache and the hub cannot be reached" in offline


def test_a_mirror_that_answers_nonsense(hub: Hub, tmp_path: Path) -> None:
    hub.nonsense = True
    [line] = fetch(hub, tmp_path, "org/model")
    assert line.startswith("FetchError hf://org/model cannot be fetched: JSONDecodeError")


@pytest.mark.matrix(2)
@pytest.mark.parametrize(
    ("status", "kind"), [(400, "SourceError"), (408, "FetchError"), (429, "FetchError"), (451, "SourceError")]
)
def test_a_hub_that_refuses(hub: Hub, tmp_path: Path, status: int, kind: str) -> None:
    """FetchErrors are retried."""
    hub.refuses = status
    [line] = fetch(hub, tmp_path, "org/model", HF_HUB_DOWNLOAD_TIMEOUT="1")
    assert line.startswith(f"{kind} hf://org/model "), line


def test_an_address_that_cannot_be_asked(hub: Hub, tmp_path: Path) -> None:
    [line] = fetch(hub, tmp_path, "org/model", HF_ENDPOINT="gopher://127.0.0.1")
    assert line.startswith("SourceError hf://org/model "), line


HTML = b"<html>Please log in to the network</html>"
JSON_ERROR = b'{"error": "Too many requests"}'


@pytest.mark.matrix(2)
@pytest.mark.parametrize("unsized", [False, True])
@pytest.mark.parametrize(
    "odd",
    [
        {"config.json": HTML},
        {"tokenizer.json": HTML},
        {"config.json": b""},
        {"config.json": JSON_ERROR},
        {"model.safetensors": b"\x02\x00\x00"},
        {"model.safetensors": HTML, "config.json": HTML},
    ],
)
def test_an_odd_answer_is_refused_and_does_not_stay(
    hub: Hub, tmp_path: Path, odd: dict[str, bytes], unsized: bool
) -> None:
    hub.odd, hub.unsized = odd, unsized
    [refused] = fetch(hub, tmp_path, "org/model")
    assert refused.startswith("FetchError hf://org/model: the hub sent broken files: ")
    assert all(name in refused for name in odd)
    assert "HF_ENDPOINT" in refused
    hub.odd = {}
    [found] = fetch(hub, tmp_path, "org/model")
    root = Path(found.removeprefix("found org/model "))
    assert {name: (root / name).read_bytes() for name in odd} == {name: hub.files[name] for name in odd}


def test_what_is_broken_in_the_cache_is_fetched_again(hub: Hub, tmp_path: Path) -> None:
    """Broken files are left by earlier versions or other programs; other files are not touched."""
    [found] = fetch(hub, tmp_path, "org/model")
    root = Path(found.removeprefix("found org/model "))
    (root / "config.json").write_bytes(HTML)
    (root / "model.safetensors").write_bytes(b"")
    (root / "notes.bin").write_bytes(HTML)
    hub.asked.clear()
    assert fetch(hub, tmp_path, "org/model") == [found]
    assert (root / "config.json").read_bytes() == hub.files["config.json"]
    assert (root / "notes.bin").read_bytes() == HTML
    assert not any("tokenizer" in asked for asked in hub.asked)


def test_what_the_hub_itself_has_wrong_is_for_its_reader_to_say(hub: Hub, tmp_path: Path) -> None:
    hub.files = {**hub.files, "config.json": b"{,}", "model.safetensors": b"no safetensors"}
    [refused] = fetch(hub, tmp_path, "org/model")
    assert refused.startswith("ModelError ")
    assert "config.json is not JSON" in refused
    assert sum(asked.startswith("GET ") and "model.safetensors" in asked for asked in hub.asked) == 1


def test_without_a_network_what_is_broken_is_named_with_the_way_out(hub: Hub, tmp_path: Path) -> None:
    [found] = fetch(hub, tmp_path, "org/model")
    config = Path(found.removeprefix("found org/model ")) / "config.json"
    config.write_bytes(HTML)
    [refused] = fetch(hub, tmp_path, "org/model", HF_HUB_OFFLINE="1")
    assert refused.startswith("SourceError hf://org/model: files in the cache are broken: config.json (it has ")
    assert "`plimsoll models rm hf://org/model`" in refused
    assert config.read_bytes() == HTML, "who cannot fetch it again removes nothing"


@pytest.mark.matrix(2)
@pytest.mark.parametrize("listed", [(), ("model.safetensors",), ("config.json",), ("README.md", "onnx/config.json")])
def test_a_list_of_files_that_lacked_some_does_not_stay(hub: Hub, tmp_path: Path, listed: tuple[str, ...]) -> None:
    hub.listed = listed
    [refused] = fetch(hub, tmp_path, "org/model")
    assert refused.startswith("ModelError ")
    hub.listed = None
    [found] = fetch(hub, tmp_path, "org/model")
    root = Path(found.removeprefix("found org/model "))
    assert sorted(p.name for p in root.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    hub.asked.clear()
    assert fetch(hub, tmp_path, "org/model") == [found]
    assert not any(asked.startswith("GET /org/") for asked in hub.asked)


def test_a_file_that_was_missing_for_a_while(hub: Hub, tmp_path: Path) -> None:
    hub.gone = {"config.json"}
    [refused] = fetch(hub, tmp_path, "org/model")
    assert refused.startswith("SourceError hf://org/model cannot be fetched: ")
    hub.gone = set()
    [found] = fetch(hub, tmp_path, "org/model")
    assert found.startswith("found")


def test_two_files_that_a_mirror_gives_one_name(hub: Hub, tmp_path: Path) -> None:
    """The library stores files by ETag, and would return the first file for the second."""
    hub.etags = dict.fromkeys(("config.json", "tokenizer.json"), "e" * 40)
    [refused] = fetch(hub, tmp_path, "org/model")
    assert refused.startswith("FetchError hf://org/model: the hub sent broken files: ")
    hub.etags = {}
    [found] = fetch(hub, tmp_path, "org/model")
    assert found.startswith("found")


@pytest.mark.long
def test_a_cut_download_leaves_nothing_that_looks_whole(hub: Hub, tmp_path: Path) -> None:
    hub.cut = True
    [line] = fetch(hub, tmp_path, "org/model")
    assert line.startswith("FetchError hf://org/model cannot be fetched: ")
    [offline] = fetch(hub, tmp_path, "org/model", HF_HUB_OFFLINE="1")
    assert offline.startswith("SourceError hf://org/model is not in the cache")
    hub.cut = False
    [again] = fetch(hub, tmp_path, "org/model")
    assert again.startswith("found")


@pytest.fixture(scope="module")
def gguf_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Two files of one model, and one of them in two shards."""
    folder = tmp_path_factory.mktemp("gguf")
    model = make_model("Qwen2Config", {"num_hidden_layers": 1})
    for name in ("m-Q4_K_M", "m-Q8_0"):
        write_gguf(model, folder / f"{name}.gguf", Kind.F32)
    write_gguf(model, folder / "m-F32.gguf", Kind.F32, parts_of=9)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_repository_of_gguf_files(hub: Hub, tmp_path: Path, gguf_files: dict[str, bytes]) -> None:
    """Only the requested file is fetched, and then found offline."""
    hub.files = {"README.md": b"", "config.json": b"{}", **gguf_files}
    root = tmp_path / "hub" / "models--org--model" / "snapshots" / MAIN
    assert fetch(hub, tmp_path, "hf://org/model") == [f"found m-Q4_K_M {root}"]
    assert not any("m-Q8_0" in asked for asked in hub.asked)
    found = fetch(hub, tmp_path, "hf://org/model:Q8_0", "org/model@main:m-Q8_0.gguf")
    assert found == [f"found m-Q8_0 {root}"] * 2
    assert fetch(hub, tmp_path, "hf://org/model:Q8_0", HF_HUB_OFFLINE="1") == found[:1]


def test_a_gguf_file_in_parts_beside_other_weights(hub: Hub, tmp_path: Path, gguf_files: dict[str, bytes]) -> None:
    hub.files = {**hub.files, **gguf_files}
    [found] = fetch(hub, tmp_path, "org/model:F32")
    assert found.startswith("found m-F32-00001-of-0000")
    parts = {name for name in gguf_files if name.startswith("m-F32")}
    assert len(parts) > 1
    assert parts <= {path.name for path in Path(found.split()[-1]).iterdir()}


def test_a_gguf_file_that_is_not_there(hub: Hub, tmp_path: Path, gguf_files: dict[str, bytes]) -> None:
    hub.files = gguf_files
    [told] = fetch(hub, tmp_path, "hf://org/model:Q2_K")
    assert "SourceError hf://org/model:Q2_K has no GGUF file of that name or type; use hf://ORG/NAME:FILE with" in told
    assert "m-Q4_K_M.gguf" in told
