"""Usage and limits of one API key: requests and tokens a minute, and concurrent streams."""
