"""Names of span attributes by OpenTelemetry's conventions, all in one place: those for GenAI are still in development.

Source: opentelemetry.io/docs/specs/semconv (http, url, network, error), and open-telemetry/semantic-conventions-genai.
"""

from __future__ import annotations

PROVIDER = "gen_ai.provider.name"
PROVIDER_NAME = "plimsoll"
OPERATION = "gen_ai.operation.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
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
SERVER_ADDRESS = "server.address"
ERROR_TYPE = "error.type"

REQUEST_ID = "plimsoll.request_id"
NAMESPACE = "plimsoll.namespace"
MODEL = "plimsoll.model"
"""The name of the ModelDeployment, in NAMESPACE."""
REPLICA = "plimsoll.replica"
REASON = "plimsoll.reason"
TOKENS = "plimsoll.tokens"
FOUND_TOKENS = "plimsoll.found_tokens"
"""Tokens that need not be computed: they are in the prefix cache or its tiers."""
CHOICE = "plimsoll.choice"

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
