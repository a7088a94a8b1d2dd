"""Reserved for drafters; empty. See docs/design/20261127-ten-changes.md."""
