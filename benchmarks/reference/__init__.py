"""Writes reference pages that cover several packages."""
