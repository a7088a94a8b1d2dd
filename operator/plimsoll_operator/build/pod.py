"""A pod of a model of its own: `plimsoll serve`."""

from __future__ import annotations

from typing import Any

from plimsoll_operator.build.arguments import FILES, GROUP_VARIABLE, RESPONSES, claim_name, serve_arguments
from plimsoll_operator.build.image import Image
from plimsoll_operator.build.revision import revision, user_part
from plimsoll_operator.build.runtime_pod import Parts, Store, build_runtime_pod
from plimsoll_operator.identity import (
    FILES_VOLUME,
    GROUP_LABEL,
    KEEPER_LABEL,
    RESPONSES_VOLUME,
    REVISION_LABEL,
    SERVING,
)
from plimsoll_operator.spec import Spec


def build_pod(spec: Spec, image: Image, suffix: str, group: str = "0") -> dict[str, Any]:
    """One replica. Two pods of one spec and image differ in `suffix` and `group` only."""
    claim = claim_name(spec.source)
    parts = Parts(
        role=SERVING,
        group=group,
        revision=revision(spec, image),
        arguments=serve_arguments(spec),
        environment=_token(spec) | _group(spec),
        claims={claim: "model"} if claim else {},
        stores=_stores(spec),
        labels={REVISION_LABEL: user_part(spec), **_keeper(spec, group)},
    )
    return build_runtime_pod(spec, image, suffix, parts)


def _token(spec: Spec) -> dict[str, Any]:
    """The kubelet reads the Secret: the operator has no part in it."""
    if spec.token is None:
        return {}
    return {"HF_TOKEN": {"secretKeyRef": {"name": spec.token.name, "key": spec.token.key}}}


def _stores(spec: Spec) -> tuple[Store, ...]:
    responses, files = _responses_claim(spec), spec.files
    return (
        *((Store(RESPONSES_VOLUME, responses, RESPONSES),) if responses else ()),
        *((Store(FILES_VOLUME, files.claim, FILES),) if files else ()),
    )


def _group(spec: Spec) -> dict[str, Any]:
    """The pod's own label: two pods of one spec and image are to differ in nothing but labels and names."""
    if _responses_claim(spec) is None:
        return {}
    return {GROUP_VARIABLE: {"fieldRef": {"fieldPath": f"metadata.labels['{GROUP_LABEL}']"}}}


def _keeper(spec: Spec, group: str) -> dict[str, str]:
    """Under which name gateways find what the pod keeps, which the one in its place keeps after it."""
    return {} if _responses_claim(spec) is None else {KEEPER_LABEL: f"{spec.key.name}-{group}"}


def _responses_claim(spec: Spec) -> str | None:
    return None if spec.responses is None else spec.responses.claim
