"""A step's inputs: batch state, block tables, and the upload to the device."""
