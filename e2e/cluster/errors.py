"""The error type for users."""


class ClusterError(Exception):
    """An error that the user can fix: the message names the problem and its solution. Printed without traceback."""
