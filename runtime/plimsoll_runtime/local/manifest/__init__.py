"""What the API server does with a manifest: YAML, CRD, schema, CEL rules."""
