"""A small schema with one field of each type, and objects to validate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from plimsoll_runtime.local.manifest import crd
from plimsoll_runtime.local.manifest.manifest import Document
from plimsoll_runtime.local.manifest.validation import RefusedError, admit

SMALL_CRD = """
spec:
  group: example.dev
  names: {kind: Thing}
  versions:
  - name: v1
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        required: [spec]
        properties:
          apiVersion: {type: string}
          kind: {type: string}
          metadata: {type: object}
          spec:
            type: object
            required: [model]
            x-kubernetes-validations:
            - {rule: "!has(self.low) || !has(self.high) || self.low <= self.high", message: low is above high}
            - {rule: "self.size == oldSelf.size", message: size cannot be changed}
            properties:
              model:
                type: object
                required: [source]
                properties:
                  source: {type: string, pattern: "^(demo|hf)://.+$", maxLength: 20, minLength: 3}
                  names:
                    {type: array, x-kubernetes-list-type: set, minItems: 1, maxItems: 3, items: {type: string}}
              low: {type: integer, minimum: 0, maximum: 10}
              high: {type: integer, exclusiveMaximum: true, maximum: 100}
              size: {x-kubernetes-int-or-string: true}
              kind: {type: string, enum: [small, large], default: small}
              ratio: {type: number, multipleOf: 0.5}
              tags: {type: object, maxProperties: 2, additionalProperties: {type: string, maxLength: 5}}
              anything: {type: object, x-kubernetes-preserve-unknown-fields: true}
              maybe: {type: string, nullable: true}
              nested:
                type: object
                default: {}
                properties:
                  active: {type: boolean, default: true}
              env:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [name]
                items:
                  type: object
                  required: [name]
                  x-kubernetes-validations:
                  - rule: "!(has(self.value) && has(self.valueFrom))"
                    message: not both
                    messageExpression: "'not both for ' + self.name"
                    fieldPath: .valueFrom
                    reason: FieldValueForbidden
                  properties:
                    name: {type: string}
                    value: {type: string}
                    valueFrom: {type: object, x-kubernetes-preserve-unknown-fields: true}
"""

Refusals = Callable[[dict[str, Any]], list[str]]


def thing(**spec: Any) -> dict[str, Any]:
    """Return a valid object, with `spec` merged over its own."""
    return {
        "apiVersion": "example.dev/v1",
        "kind": "Thing",
        "metadata": {"name": "t"},
        "spec": {"model": {"source": "demo://x"}, **spec},
    }


@pytest.fixture
def small_crd(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = yaml.safe_load(SMALL_CRD)
    monkeypatch.setattr(crd, "load_crd", lambda file=crd.MODELS: loaded)


@pytest.fixture
def refusals(small_crd: None) -> Refusals:
    """Return a function that validates an object and returns its errors, [] if it is valid."""

    def ask(body: dict[str, Any]) -> list[str]:
        try:
            admit(Document("f.yaml", body))
        except RefusedError as refused:
            return refused.problems
        return []

    return ask
