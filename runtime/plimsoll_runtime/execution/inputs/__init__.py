"""a step's inputs: batch state and what is uploaded."""
