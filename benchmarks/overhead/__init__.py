"""What does a step cost besides arithmetic?"""
