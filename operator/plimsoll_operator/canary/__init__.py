"""A new revision gets a share of the requests first, and is taken back by itself when it answers worse."""
