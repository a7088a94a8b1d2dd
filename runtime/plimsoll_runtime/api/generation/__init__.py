"""From prompts to answers in text, for every endpoint that generates."""
