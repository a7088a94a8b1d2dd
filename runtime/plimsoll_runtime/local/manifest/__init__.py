"""Reads and validates manifests like the API server: YAML, CRD, schema, CEL rules."""
