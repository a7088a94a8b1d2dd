"""The CPU executor: a program as one C++ call for each step."""
