"""The cost of prefix caching if no prefixes are shared."""
