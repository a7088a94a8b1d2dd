"""Which models a pool takes. Its own namespace's are its own; of others it takes whom and what its spec says."""

from __future__ import annotations

from plimsoll_operator.build.arguments import claim_name
from plimsoll_operator.pools.model_placement import Problem
from plimsoll_operator.spec.identity import ObjectKey
from plimsoll_operator.spec.model_deployment import OF_ACCELERATORS, Spec
from plimsoll_operator.spec.namespace_selector import NAMESPACE_LABEL, Labels
from plimsoll_operator.spec.runtime_pool import PoolSpec
from plimsoll_operator.status.reasons import Reason

OPEN_SOURCES = ("hf://", "demo://")
"""Sources that reach nothing which belongs to the pool's namespace."""


def refuse_namespace(model: ObjectKey, pool: PoolSpec, labels: Labels) -> Problem | None:
    """Why a pool takes no models of this one's namespace, whose labels these are. None where it takes them.

    What it has of them already must go: whom it takes is for the pool's namespace to say, at any time.
    """
    if model.namespace == pool.key.namespace:
        return None
    line = f"spec.namespaces: {{matchLabels: {{{NAMESPACE_LABEL}: {model.namespace}}}}}"
    if pool.namespaces is None:
        message = f"RuntimePool {pool.key} takes no models of other namespaces; add to it {line}"
        return Problem(Reason.NAMESPACE_NOT_ADMITTED, message, keeps=False)
    taken = pool.namespaces.takes(labels)
    if taken:
        return None
    if taken is None:
        unknown = ", ".join(pool.namespaces.unknown(labels))
        message = (
            f"spec.namespaces of RuntimePool {pool.key} asks for the labels {unknown}, and this operator may not see "
            "labels of namespaces, as the chart's watchNamespaces limits it to some: choose them by "
            f"{NAMESPACE_LABEL}, which is known, or install Plimsoll for all namespaces"
        )
        return Problem(Reason.NAMESPACE_UNKNOWN, message, keeps=False)
    message = (
        f"spec.namespaces of RuntimePool {pool.key} does not select namespace {model.namespace}: give the namespace "
        f"the labels that it asks for, or choose it by {line}"
    )
    return Problem(Reason.NAMESPACE_NOT_ADMITTED, message, keeps=False)


def refuse_source(spec: Spec, pool: PoolSpec) -> Problem | None:
    """Why a pool does not load from this source. None where it does."""
    claim = claim_name(spec.source)
    foreign = spec.key.namespace != pool.key.namespace
    if claim is None:
        return _refuse_path(spec, pool) if foreign and not spec.source.startswith(OPEN_SOURCES) else None
    mount = (
        f"to its spec.template.volumes: {{name: {_volume_name(claim)}, persistentVolumeClaim: {{claimName: {claim}}}}}"
    )
    mounted = claim in pool.claims
    if foreign and claim not in pool.shared_claims:
        lines = f"add to its spec.sharedClaims: [{claim}]" + ("" if mounted else f", and {mount}")
        message = f"RuntimePool {pool.key} does not share the claim {claim} with other namespaces; {lines}"
        return Problem(Reason.SOURCE_NOT_ADMITTED, message, keeps=False)
    if not mounted:
        message = f"the pods of RuntimePool {pool.key.name} do not mount the claim {claim}; add {mount}"
        return Problem(Reason.CLAIM_NOT_MOUNTED, message)
    return None


def refuse_options(spec: Spec, pool: PoolSpec) -> Problem | None:
    """Why the pods of a pool cannot compute a model as it asks to be. None where they can."""
    if spec.trust_remote_code:
        what = f"RuntimePool {pool.key} runs no code that comes with a model, for its pods serve others as well"
        return Problem(Reason.INVALID_OPTIONS, f"{what}: leave out model.trustRemoteCode, or placement")
    backend = spec.options.get("attentionBackend")
    if backend in OF_ACCELERATORS and pool.accelerator is None:
        what = f"runtime.attentionBackend {backend} needs an accelerator, and RuntimePool {pool.key} has none"
        return Problem(Reason.INVALID_OPTIONS, f"{what}: leave it out, or name a pool with resources.accelerator")
    if backend == "cpu" and pool.accelerator is not None:
        what = f"runtime.attentionBackend cpu is for CPUs, and RuntimePool {pool.key} has {pool.accelerator.resource}"
        return Problem(Reason.INVALID_OPTIONS, f"{what}: leave it out, or name a pool without an accelerator")
    return None


def _refuse_path(spec: Spec, pool: PoolSpec) -> Problem:
    message = (
        f"RuntimePool {pool.key} is of another namespace, so it loads from hf://, from demo:// and from the claims in "
        f"its spec.sharedClaims only, and not from {spec.source}"
    )
    return Problem(Reason.SOURCE_NOT_ADMITTED, message, keeps=False)


def _volume_name(claim: str) -> str:
    """Names of claims may have dots and be long, those of volumes may not."""
    return claim.replace(".", "-")[:63].strip("-")
