"""A step's inputs: batch state, block tables, and what is uploaded to the device."""
