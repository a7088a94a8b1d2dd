"""Helpers without a layer of their own."""
