"""What does it cost to keep answers to a schema?"""
