"""Plans the remaining work of a row from its tiles alone: none, a draw, or a search above a bound."""
