"""What a row still needs, from its tiles alone: nothing, a draw, or a search below a bound."""
