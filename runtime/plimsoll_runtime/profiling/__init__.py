"""`plimsoll profile`: measures the engine on a synthetic batch by phase and op, and compares it with the machine's
limits.
"""
