"""The place of drafters. Empty: see docs/design/20261127-ten-changes.md."""
