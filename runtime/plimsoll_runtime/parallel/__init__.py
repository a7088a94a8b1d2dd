"""empty package: where collectives go (docs/design/20261127-ten-changes.md)."""
