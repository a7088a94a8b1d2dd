"""Traces and log lines, the same in the gateway, the operator and the runtime. It imports none of them."""
