"""Requests, blocks and the scheduler: pure Python over integers."""
