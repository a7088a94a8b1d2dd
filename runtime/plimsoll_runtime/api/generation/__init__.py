"""From prompts to outputs, for every endpoint that generates or pools."""
