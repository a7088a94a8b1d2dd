"""Usage and limits of one key: requests and tokens a minute, and streams at once."""
