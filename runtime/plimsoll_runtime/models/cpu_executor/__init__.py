"""The CPU executor: runs a program with one C++ call for each step."""
