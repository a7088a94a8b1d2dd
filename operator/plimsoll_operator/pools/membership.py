"""Decides which models a pool accepts: all of its own namespace, and of others those that its spec admits."""

from __future__ import annotations

from plimsoll_operator.build.arguments import claim_name
from plimsoll_operator.pools.model_placement import Problem
from plimsoll_operator.spec.identity import ObjectKey
from plimsoll_operator.spec.model_deployment import OF_ACCELERATORS, Spec
from plimsoll_operator.spec.namespace_selector import NAMESPACE_LABEL, Labels
from plimsoll_operator.spec.runtime_pool import PoolSpec
from plimsoll_operator.status.reasons import Reason

OPEN_SOURCES = ("hf://", "demo://")
"""Sources that need nothing of the pool's namespace."""


def refuse_namespace(model: ObjectKey, pool: PoolSpec, labels: Labels) -> Problem | None:
    """Return why a pool accepts no models of this model's namespace, whose labels are given; None if it accepts them.

    Copies that it already has are removed, because the pool's owner may withdraw the admission at any time.
    """
    if model.namespace == pool.key.namespace:
        return None
    line = f"spec.namespaces: {{matchLabels: {{{NAMESPACE_LABEL}: {model.namespace}}}}}"
    if pool.namespaces is None:
        message = f"RuntimePool {pool.key} accepts no models of other namespaces; add to it {line}"
        return Problem(Reason.NAMESPACE_NOT_ADMITTED, message, keeps=False)
    taken = pool.namespaces.takes(labels)
    if taken:
        return None
    if taken is None:
        unknown = ", ".join(pool.namespaces.unknown(labels))
        message = (
            f"spec.namespaces of RuntimePool {pool.key} requires the labels {unknown}, and this operator may not read "
            "labels of namespaces, because the chart's watchNamespaces limits it to some: select by "
            f"{NAMESPACE_LABEL}, which is known, or install Plimsoll for all namespaces"
        )
        return Problem(Reason.NAMESPACE_UNKNOWN, message, keeps=False)
    message = (
        f"spec.namespaces of RuntimePool {pool.key} does not select namespace {model.namespace}: give the namespace "
        f"the labels that it requires, or select it by {line}"
    )
    return Problem(Reason.NAMESPACE_NOT_ADMITTED, message, keeps=False)


def refuse_source(spec: Spec, pool: PoolSpec) -> Problem | None:
    """Return why a pool does not load a model from its source; None if it does."""
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
    """Return why the pods of a pool cannot run a model with its options; None if they can."""
    if spec.trust_remote_code:
        what = f"RuntimePool {pool.key} runs no code from a model's repository, because its pods serve other models too"
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
        f"RuntimePool {pool.key} is in another namespace, so it loads only from hf://, demo:// and the claims in its "
        f"spec.sharedClaims, and not from {spec.source}"
    )
    return Problem(Reason.SOURCE_NOT_ADMITTED, message, keeps=False)


def _volume_name(claim: str) -> str:
    """Return a volume name for a claim, whose name may be longer and have dots."""
    return claim.replace(".", "-")[:63].strip("-")
