"""This working tree beside an earlier commit: `bench.py --against COMMIT`."""
