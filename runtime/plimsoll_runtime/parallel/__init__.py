"""Reserved for collectives and shards; empty. See docs/design/20261127-ten-changes.md."""
