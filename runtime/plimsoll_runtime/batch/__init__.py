"""Rows of files to lines of files, so that a run that was killed goes on where it was: nothing here knows of models."""
