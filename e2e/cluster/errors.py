"""The one error that a person is meant to read."""


class ClusterError(Exception):
    """Something a person can act on: says what was wrong and what to do. Printed without a traceback."""
