"""Quota shares between several gateways: one gateway owns the quota of a key, and each holds a share of it."""
