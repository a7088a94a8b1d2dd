"""Joins the engine to a process: composition, child process, clients."""
