"""The API server's verdict on specs; a contract test holds laptop mode to the same list."""

from __future__ import annotations

import pytest
from operator_support.direct import Direct, Refused
from operator_support.verdicts import VERDICTS, Verdict

MODEL = {"model": {"source": "demo://gemma-3-270m"}}


@pytest.mark.parametrize("verdict", VERDICTS, ids=str)
def test_the_api_servers_verdict(direct: Direct, verdict: Verdict) -> None:
    if verdict.refusal is None:
        direct.create_model("m", MODEL | verdict.spec)
        return
    with pytest.raises(Refused) as refused:
        direct.create_model("m", MODEL | verdict.spec)
    assert refused.value.code == 422
    assert verdict.refusal in refused.value.message
