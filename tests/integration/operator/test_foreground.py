"""A foreground deletion waits for pods, also with OwnerReferencesPermissionEnforcement."""

from __future__ import annotations

import pytest
from operator_support.apiserver import ADMIN, FIRST, ApiServer
from operator_support.direct import Direct
from operator_support.recording import Operator, connect

from plimsoll_operator.spec.identity import ObjectKey


@pytest.mark.long
async def test_pods_hold_up_the_deletion_of_their_owner(strict_server: ApiServer) -> None:
    key = ObjectKey("default", "m")
    with Direct(strict_server.url, ADMIN, key.namespace) as direct:
        direct.create_model(key.name, {"model": {"source": "demo://gemma-3-270m"}})
        async with await connect(strict_server.kubeconfig(FIRST)) as http:
            operator = Operator(http)
            await operator.until_quiet(key)
            (pod,) = direct.pods(key.name)
            (owner,) = pod["metadata"]["ownerReferences"]
            assert owner["blockOwnerDeletion"]
            # Changing its owner needs the right to delete it, and the operator deletes no Services.
            direct.change_service(key.name, selector={"app": "theirs"})
            await operator.until_quiet(key)
        assert "app" not in direct.service(key.name)["spec"]["selector"]
        conditions = {c["type"]: c["reason"] for c in direct.model(key.name)["status"]["conditions"]}
        assert "Rejected" not in conditions.values()
