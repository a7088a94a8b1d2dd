"""What a decoder-only transformer is made of, as data: what a family says, and nothing that follows from it."""
