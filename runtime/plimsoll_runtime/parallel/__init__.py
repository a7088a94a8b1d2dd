"""The place of collectives and shards. Empty: see docs/design/20261127-ten-changes.md."""
