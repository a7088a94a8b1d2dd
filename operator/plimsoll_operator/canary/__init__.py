"""Canaries: a new revision gets a share of requests before it replaces the stable one, and is rolled back if it is
worse.
"""
