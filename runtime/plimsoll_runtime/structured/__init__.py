"""Structured outputs: grammars of JSON schemas, patterns and other constraints, compiled in the background and enforced
token by token.
"""
