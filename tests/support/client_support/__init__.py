"""Shared code of the client programs; they run in the environment of `make clients`."""
