"""Checks what an operator needs before it can work: the CRDs and its rights.

Each operator checks at its start, as a standby too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from plimsoll_operator.kube.api import PLURALS, Api, ApiError
from plimsoll_operator.kube.rbac import LEASE_RIGHTS, NAMESPACE_RIGHTS, NODE_RIGHTS, RECORD_RIGHTS, RIGHTS, Right
from plimsoll_operator.spec.identity import ObjectKey

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 10.0
"""Objects that are applied together with the operator exist within this time."""
RETRY_SECONDS = 2.0
CRD_HINT = "apply the crds/ of this release"
WITHOUT_A_NAME = frozenset({"create"})
"""Verbs that a rule cannot limit to names."""


class PrerequisiteError(Exception):
    """The operator cannot work in this cluster; the message says what is missing and what to do."""


async def await_prerequisites(
    api: Api, namespaces: Sequence[str] | None, lease: ObjectKey, record: ObjectKey | None = None
) -> None:
    """Wait until nothing is missing. Raise PrerequisiteError after `PATIENCE_SECONDS`, not counting outages. Return
    immediately if the operator may not check.
    """
    left = PATIENCE_SECONDS
    while True:
        try:
            lacking = await missing(api, namespaces, lease, record)
        except ApiError as error:
            logger.warning("cannot check this operator's prerequisites: %s", error)
            if error.is_refusal:
                return  # An operator without the right to check may still have the others.
        else:
            if not lacking:
                return
            if left <= 0:
                raise PrerequisiteError("; ".join(lacking))
            logger.error("this operator cannot work yet: %s", "; ".join(lacking))
            left -= RETRY_SECONDS
        await asyncio.sleep(RETRY_SECONDS)


async def missing(
    api: Api, namespaces: Sequence[str] | None, lease: ObjectKey, record: ObjectKey | None = None
) -> list[str]:
    """Return what is missing, in sentences; `record` is the ConfigMap with the record of served names. Raise
    ApiError.
    """
    lacking = []
    if not await api.serves_models():
        lacking.append(f"the API server does not know {', '.join(f'{kind}s' for kind in PLURALS)}: {CRD_HINT}")
    for namespace in namespaces or (None,):
        refused = [right for right in sorted(RIGHTS) if not await api.may(right, namespace)]
        if refused:
            place = "in all namespaces" if namespace is None else f"in namespace {namespace}"
            lacking.append(_refused(refused, place))
    refused = [right for right in sorted(LEASE_RIGHTS) if not await _may_lease(api, right, lease)]
    if refused:
        lacking.append(_refused(refused, f"on the Lease {lease}"))
    if record is not None:
        refused = [right for right in sorted(RECORD_RIGHTS) if not await api.may(right, record.namespace, record.name)]
        if refused:
            lacking.append(_refused(refused, f"on the ConfigMap {record}"))
    return lacking


async def may_see_nodes(api: Api) -> bool:
    """Return whether nodes may be watched; log the consequence if not."""
    return await _may_see(api, NODE_RIGHTS, "nodes", "pods are not moved before their node is drained")


async def may_see_namespaces(api: Api) -> bool:
    """Return whether namespaces may be watched, by whose labels pools select them; log the consequence if not."""
    without = "spec.namespaces of RuntimePools can select them only by kubernetes.io/metadata.name"
    return await _may_see(api, NAMESPACE_RIGHTS, "namespaces", without)


async def _may_see(api: Api, rights: frozenset[Right], what: str, without: str) -> bool:
    try:
        seen = all([await api.may(right, None) for right in sorted(rights)])
    except ApiError as error:
        logger.warning("cannot check whether this operator may list and watch %s: %s", what, error)
        seen = False
    if not seen:
        logger.warning("this operator may not list and watch %s: %s", what, without)
    return seen


async def _may_lease(api: Api, right: Right, lease: ObjectKey) -> bool:
    return await api.may(right, lease.namespace, "" if right[2] in WITHOUT_A_NAME else lease.name)


def _refused(rights: Sequence[Right], place: str) -> str:
    listed = ", ".join(f"{verb} {kind}{'.' if group else ''}{group}" for group, kind, verb in rights)
    return f"the operator's ServiceAccount lacks these rights {place}: {listed}; grant the rights in the chart's roles"
