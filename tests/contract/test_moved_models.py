"""The gateway detects by the error's `code` that a 404 of a pod means that the model has left it."""

import pytest

from plimsoll_gateway.errors.refusals import code_of
from plimsoll_gateway.proxy.replica_proxy import NO_SUCH_MODEL
from plimsoll_runtime.api.host.errors import as_api_errors
from plimsoll_runtime.api.http.errors import OPENAI, ApiError
from plimsoll_runtime.residency.errors import NotPlaced


def test_a_model_that_has_left_a_host_is_told_by_its_code() -> None:
    with pytest.raises(ApiError) as told, as_api_errors():
        raise NotPlaced("m")
    assert told.value.status == 404
    assert code_of(bytes(OPENAI.response(told.value).body)) == NO_SUCH_MODEL


def test_a_path_that_a_host_does_not_offer_has_another() -> None:
    unknown = OPENAI.response(ApiError("Unknown path: POST /v1/embeddings.", status=404))
    assert code_of(bytes(unknown.body)) != NO_SUCH_MODEL
