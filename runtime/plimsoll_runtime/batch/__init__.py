"""Rows of input files to lines of output files, resumable after a crash. Nothing here depends on models."""
