"""What is there and what to do next: pure functions with reasons."""
