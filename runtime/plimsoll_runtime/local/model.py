"""A ModelDeployment on a laptop: its command line, its stores, and notes on fields without effect."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.local.manifest import crd
from plimsoll_runtime.local.manifest.manifest import Document, read_documents
from plimsoll_runtime.local.manifest.validation import RefusedError, admit
from plimsoll_runtime.options import BatchOptions, ResponseBounds
from plimsoll_runtime.utils.option import options_of


def serve_arguments(name: str, spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the arguments of `plimsoll serve` for a valid spec of the object `name`.

    The operator builds the same arguments for pods. A contract test compares both with the parser of `plimsoll serve`.
    """
    model = spec["model"]
    arguments = [_model_argument(model["source"])]
    if revision := model.get("revision"):
        arguments += ["--revision", revision]
    if model.get("trustRemoteCode"):
        arguments.append("--trust-remote-code")
    for served in model.get("servedNames") or [name]:
        arguments += ["--name", served]
    for option, value in sorted(spec.get("runtime", {}).items()):
        arguments += _option(option, value)
    return tuple(arguments)


def rank_arguments(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the arguments of `plimsoll serve` for `spec.parallel`: all ranks of a replica run on this machine."""
    parallel = spec.get("parallel")
    if parallel is None:
        return ()
    seconds = parallel.get("recoverSeconds")
    return (
        *("--tensor-parallel", str(parallel.get("tensor", 1))),
        *("--pipeline-parallel", str(parallel.get("pipeline", 1))),
        *(() if seconds is None else ("--recover-seconds", str(seconds))),
    )


def _model_argument(source: str) -> str:
    """Return the path of a `file:///path` source; the runtime accepts all other sources unchanged."""
    return source.removeprefix("file://") if source.startswith("file://") else source


def _option(field: str, value: Any) -> list[str]:
    """`maxModelLen: 4096` -> `--max-model-len 4096`; `prefixCaching: false` -> `--no-prefix-caching`."""
    flag = re.sub(r"[A-Z]", lambda letter: f"-{letter[0].lower()}", field)
    if value is True:
        return [f"--{flag}"]
    if value is False:
        return [f"--no-{flag}"]
    if isinstance(value, list):
        return [part for item in value for part in (f"--{flag}", str(item))]
    return [f"--{flag}", str(value)]


@dataclass(frozen=True, slots=True)
class Stores:
    """Response and file stores of one process: PersistentVolumeClaims as "namespace/name", and command-line options.

    On a laptop, a claim is a folder in the run folder, which stays when the run ends.
    """

    responses_claim: str | None = None
    responses_options: tuple[str, ...] = ()
    files_claim: str | None = None
    files_options: tuple[str, ...] = ()

    def arguments(self, claims: Path, slot: str) -> tuple[str, ...]:
        """Return the options of `plimsoll serve` or `plimsoll host` for the process of `slot`, and create the claims'
        folders below `claims`.
        """
        words = list(self.responses_options)
        if self.responses_claim is not None:
            words += ["--response-store", str(_folder(claims, self.responses_claim) / f"{slot}.sqlite")]
        if self.files_claim is not None:
            words += ["--files-dir", str(_folder(claims, self.files_claim) / "files"), "--files-shared"]
        return (*words, *self.files_options)


def read_stores(namespace: str, spec: Mapping[str, Any]) -> Stores:
    """Return the stores of a valid spec with its defaults."""
    responses, files = spec.get("responses") or {}, spec.get("files") or {}
    return Stores(
        responses_claim=_claim(namespace, responses),
        responses_options=_options(responses, ResponseBounds),
        files_claim=_claim(namespace, files),
        files_options=_options(files, BatchOptions),
    )


def _claim(namespace: str, values: Mapping[str, Any]) -> str | None:
    return f"{namespace}/{values['claim']}" if "claim" in values else None


def _options(values: Mapping[str, Any], record: type) -> tuple[str, ...]:
    flags = {option.deployment.partition(".")[2]: option.flag for option in options_of(record) if option.deployment}
    return tuple(word for field, flag in flags.items() if field in values for word in (flag, str(values[field])))


def _folder(claims: Path, claim: str) -> Path:
    folder = claims / claim
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


# Parts of a spec that only a cluster can apply. In `template`, plain values of `env` are applied.
CLUSTER_ONLY = ("resources", "template")
OF_PODS = ("pods", "topologyKey", "tokenSecret")
"""Fields of `parallel` that place a replica's ranks in pods."""
WHOLE = ("scaling",)


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model to run for one object.

    `spec` is the object's, with its defaults. `arguments` are those of `plimsoll serve`. `notes` list fields without
    effect on a laptop. `in_host`: the model shares a process with others (see `host_sharing`).
    """

    namespace: str
    name: str
    source: str
    served_names: tuple[str, ...]
    replicas: int
    arguments: tuple[str, ...]
    sets_threads: bool
    environment: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    origin: str
    spec: Mapping[str, Any] = field(default_factory=dict)
    in_host: bool = False
    stores: Stores = field(default_factory=Stores)

    @property
    def revision(self) -> str | None:
        """Branch, tag or commit in the spec, apart from the source."""
        revision: str | None = self.spec.get("model", {}).get("revision")
        return revision

    @property
    def brings_code(self) -> bool:
        """Whether the spec lets code from the model's repository run."""
        return bool(self.spec.get("model", {}).get("trustRemoteCode"))

    @property
    def is_divided(self) -> bool:
        """Whether each replica is divided among ranks."""
        return "parallel" in self.spec


def load_models(sources: Sequence[str], stdin: TextIO, texts: Mapping[str, str] | None = None) -> list[LocalModel]:
    """Return all models of the files. Raises UsageError with all errors of all objects.

    `texts` is passed to `read_documents`.
    """
    models, others = load_objects(sources, stdin, texts)
    if others:
        names = ", ".join(f"{other.body['kind']} {other.body['metadata']['name']}" for other in others)
        raise UsageError(
            f"{names}: this command accepts only objects of kind {crd.kind()}; `plimsoll up` accepts the others too"
        )
    return models


def load_objects(
    sources: Sequence[str], stdin: TextIO, texts: Mapping[str, str] | None = None
) -> tuple[list[LocalModel], list[Document]]:
    """Return all models of the files, and all other objects with their defaults. Raises UsageError like
    `load_models`.
    """
    models: list[LocalModel] = []
    others: list[Document] = []
    problems: list[str] = []
    for document in read_documents(sources, stdin, texts):
        try:
            body = admit(document)
            if body["kind"] == crd.kind():
                models.append(_model(document, body))
            else:
                others.append(replace(document, body=body))
        except RefusedError as refused:
            problems += refused.problems
    problems += _conflicts(models)
    if problems:
        raise UsageError("\n".join(problems))
    return models, others


def _model(document: Document, body: Mapping[str, Any]) -> LocalModel:
    meta, spec = body["metadata"], body["spec"]
    environment, from_cluster = plain_environment(spec)
    ignored = _ignored(document.body.get("spec", {})) + from_cluster
    served = tuple(spec["model"].get("servedNames") or [meta["name"]])
    source = spec["model"]["source"]
    if source.startswith("pvc://"):
        raise RefusedError([_no_claims(document, meta["name"], source)])
    return LocalModel(
        namespace=meta.get("namespace", "default"),
        name=meta["name"],
        source=source,
        served_names=served,
        replicas=spec.get("replicas", 1),
        arguments=(*serve_arguments(meta["name"], spec), *rank_arguments(spec)),
        sets_threads="threads" in spec.get("runtime", {}),
        environment=environment,
        notes=(f"{meta['name']}: without effect on a laptop: {', '.join(ignored)}",) if ignored else (),
        origin=document.origin,
        spec=spec,
        stores=read_stores(meta.get("namespace", "default"), spec),
    )


def _no_claims(document: Document, name: str, source: str) -> str:
    return (
        f'{document.origin}: ModelDeployment "{name}": spec.model.source {source} is a volume of a cluster; copy its '
        "files to a folder and use file:///absolute/path/of/the/model"
    )


def plain_environment(spec: Mapping[str, Any]) -> tuple[tuple[tuple[str, str], ...], list[str]]:
    """Return the variables of `spec.template.env` with plain values, and texts on those that only a cluster can set."""
    entries = spec.get("template", {}).get("env", [])
    plain = tuple((entry["name"], entry.get("value", "")) for entry in entries if "valueFrom" not in entry)
    others = [
        f"spec.template.env[{index}].valueFrom ({entry['name']} is taken from your own environment)"
        for index, entry in enumerate(entries)
        if "valueFrom" in entry
    ]
    return plain, others


def _ignored(spec: Mapping[str, Any]) -> list[str]:
    """Return the paths of fields in the object that have no effect on a laptop."""
    token = ["spec.model.tokenSecret (set HF_TOKEN)"] if "tokenSecret" in spec.get("model", {}) else []
    return (
        token
        + [
            f"spec.{part}.{field}"
            for part in CLUSTER_ONLY
            for field in spec.get(part) or {}
            if (part, field) != ("template", "env")
        ]
        + [f"spec.parallel.{field}" for field in OF_PODS if field in (spec.get("parallel") or {})]
        + [f"spec.{part}" for part in WHOLE if part in spec]
    )


def _conflicts(models: Sequence[LocalModel]) -> list[str]:
    problems: list[str] = []
    objects: dict[tuple[str, str], LocalModel] = {}
    names: dict[str, LocalModel] = {}
    for model in models:
        if other := objects.get((model.namespace, model.name)):
            problems.append(
                f'ModelDeployment "{model.namespace}/{model.name}" is defined twice: in {other.origin} and in '
                f"{model.origin}"
            )
            continue
        objects[model.namespace, model.name] = model
        for name in model.served_names:
            other = names.setdefault(name, model)
            if other is not model:
                problems.append(
                    f'{model.origin}: ModelDeployment "{model.name}": the served name "{name}" is already used by '
                    f'"{other.name}" of {other.origin}; change spec.model.servedNames of one of them'
                )
    return problems
