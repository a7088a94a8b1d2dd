"""A ModelDeployment as a host takes it: the spec of a placement."""

from __future__ import annotations

import hashlib

import msgspec

from plimsoll_runtime.local.model import LocalModel
from plimsoll_runtime.residency.spec import ModelName, ModelSpec
from plimsoll_runtime.utils.sizes import is_share

OWN_PROCESS = ("threads", "drainSeconds")
"""Options of a process of its own, which a model of a host has not: the host's own hold for all of them."""


def placement(model: LocalModel) -> tuple[ModelName, ModelSpec]:
    """Name and spec. What the file says of the KV cache is the least that the model gets."""
    spec = model.spec
    runtime = {key: value for key, value in spec.get("runtime", {}).items() if key not in OWN_PROCESS}
    least = runtime.pop("kvMemory", None)
    worth = {key: value for key, value in spec.get("placement", {}).items() if key in ("weight", "priority", "pinned")}
    made = ModelSpec(
        revision="",
        source=spec["model"]["source"],
        model_revision=spec["model"].get("revision"),
        served_names=model.served_names,
        runtime=runtime,
        minimum_kv=None if least is None or is_share(least) else least,
        **worth,
    )
    digest = hashlib.sha256(msgspec.json.encode(made, order="deterministic")).hexdigest()
    return ModelName(model.namespace, model.name), msgspec.structs.replace(made, revision=digest[:16])
