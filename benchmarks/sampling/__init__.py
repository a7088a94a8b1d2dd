"""What does it cost to choose tokens as requests want it?"""
