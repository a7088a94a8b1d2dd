"""Names of span attributes by OpenTelemetry's conventions, all in one place: those for GenAI are still in development.

Source: opentelemetry.io/docs/specs/semconv (http, url, network, error), and open-telemetry/semantic-conventions-genai.
"""

from __future__ import annotations

PROVIDER = "gen_ai.provider.name"
PROVIDER_NAME = "plimsoll"
OPERATION = "gen_ai.operation.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE = "gen_ai.request.temperature"
REQUEST_TOP_P = "gen_ai.request.top_p"
REQUEST_CHOICES = "gen_ai.request.choice.count"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"

METHOD = "http.request.method"
ROUTE = "http.route"
STATUS = "http.response.status_code"
RESEND = "http.request.resend_count"
ERROR_TYPE = "error.type"

REQUEST_ID = "plimsoll.request_id"
NAMESPACE = "plimsoll.namespace"
MODEL = "plimsoll.model"
"""The name of the ModelDeployment, in NAMESPACE."""
REPLICA = "plimsoll.replica"
REASON = "plimsoll.reason"
EXPLANATION = "plimsoll.explanation"
"""A reason in words, with its figures."""
TOKENS = "plimsoll.tokens"
FOUND_TOKENS = "plimsoll.found_tokens"
"""Tokens that need not be computed: they are in the prefix cache or its tiers."""
CHOICE = "plimsoll.choice"

SEQUENCES = "plimsoll.sequences"
LEFT_OUT = "plimsoll.requests_left_out"
"""Requests of a step that are not named in its record."""
USUAL_SECONDS = "plimsoll.usual_seconds"
"""The mean time of the steps of this size before it."""
FLOPS = "plimsoll.flops"
BYTES = "plimsoll.bytes"
"""Floating point operations, and bytes of memory traffic, by the cost model; not measured."""
SCHEME = "plimsoll.scheme"
"""How the weights of a product are stored while it is computed."""
WAITED_SECONDS = "plimsoll.ranks.waited_seconds"
"""Seconds in which each rank of a group has waited for others, in the order of ranks."""
SPILLED_BLOCKS = "plimsoll.kv.spilled_blocks"
RESTORED_BLOCKS = "plimsoll.kv.restored_blocks"
COPIED_BLOCKS = "plimsoll.kv.copied_blocks"

DEVICE = "plimsoll.device"
DTYPE = "plimsoll.dtype"
ARCHITECTURE = "plimsoll.architecture"
ATTENTION_BACKEND = "plimsoll.attention.backend"
WEIGHT_BYTES = "plimsoll.weights.bytes"
KV_BYTES = "plimsoll.kv.bytes"
WORKSPACE_BYTES = "plimsoll.workspace.bytes"
DOWNLOADED_BYTES = "plimsoll.downloaded.bytes"

POOL = "plimsoll.pool"
HOST = "plimsoll.host"
MODELS = "plimsoll.models"
HOSTS = "plimsoll.hosts"
ACTIONS = "plimsoll.actions"
REFUSALS = "plimsoll.refusals"

_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}


def operation_of(path: str) -> str | None:
    """Return the convention's name of an endpoint's operation; None for endpoints that it does not name."""
    return _OPERATIONS.get(path)


_METHODS = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY", "TRACE"})
OTHER_METHOD = "_OTHER"


def method_of(method: str) -> str:
    """Return a request's method; OTHER_METHOD for one that HTTP does not define, which is text of the client."""
    return method if method in _METHODS else OTHER_METHOD


def request_name(method: str, route: str) -> str:
    """Return the name of a request's span."""
    return f"{'HTTP' if method == OTHER_METHOD else method} {route}"
