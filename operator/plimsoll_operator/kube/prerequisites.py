"""What must be there before an operator can do anything at all: the definition of its objects, and its rights.

Asked for at the start, by each operator, whether it holds the Lease or not.
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
"""What is applied together with the operator is there within this time."""
RETRY_SECONDS = 2.0
CRD_HINT = "apply the crds/ of this release"
WITHOUT_A_NAME = frozenset({"create"})
"""Verbs of which no rule can say for which name."""


class PrerequisiteError(Exception):
    """The operator cannot work here; the message says what is missing and what to do."""


async def await_prerequisites(
    api: Api, namespaces: Sequence[str] | None, lease: ObjectKey, record: ObjectKey | None = None
) -> None:
    """Return once everything is there. Raises PrerequisiteError after a while; an outage is waited out."""
    left = PATIENCE_SECONDS
    while True:
        try:
            lacking = await missing(api, namespaces, lease, record)
        except ApiError as error:
            logger.warning("it cannot be told whether this operator can work here: %s", error)
            if error.is_refusal:
                return  # whoever may not ask may still do
        else:
            if not lacking:
                return
            if left <= 0:
                raise PrerequisiteError("; ".join(lacking))
            logger.error("this operator cannot work here yet: %s", "; ".join(lacking))
            left -= RETRY_SECONDS
        await asyncio.sleep(RETRY_SECONDS)


async def missing(
    api: Api, namespaces: Sequence[str] | None, lease: ObjectKey, record: ObjectKey | None = None
) -> list[str]:
    """What is not there, in sentences; `record` is the ConfigMap with the record of served names. Raises ApiError."""
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
    """Whether nodes that are being drained can be seen; says once what becomes of it where they cannot."""
    return await _may_see(api, NODE_RIGHTS, "nodes", "pods are not moved before their node is drained")


async def may_see_namespaces(api: Api) -> bool:
    """The same of namespaces, by whose labels pools choose whom they serve."""
    without = "spec.namespaces of RuntimePools can choose them by kubernetes.io/metadata.name alone"
    return await _may_see(api, NAMESPACE_RIGHTS, "namespaces", without)


async def _may_see(api: Api, rights: frozenset[Right], what: str, without: str) -> bool:
    try:
        seen = all([await api.may(right, None) for right in sorted(rights)])
    except ApiError as error:
        logger.warning("it cannot be told whether this operator may see %s: %s", what, error)
        seen = False
    if not seen:
        logger.warning("this operator may not list and watch %s: %s", what, without)
    return seen


async def _may_lease(api: Api, right: Right, lease: ObjectKey) -> bool:
    return await api.may(right, lease.namespace, "" if right[2] in WITHOUT_A_NAME else lease.name)


def _refused(rights: Sequence[Right], place: str) -> str:
    listed = ", ".join(f"{verb} {kind}{'.' if group else ''}{group}" for group, kind, verb in rights)
    return f"the operator's ServiceAccount may not, {place}: {listed}; grant it what the chart's roles do"
