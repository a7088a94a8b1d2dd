"""Checks and benches of a device, in parts that end within a bound of time and go on after a break.

Nothing here imports more than Python's own library: it runs before what is missing was installed.
"""
