"""Attention over the KV cache: contract, registry, selection and backends."""
