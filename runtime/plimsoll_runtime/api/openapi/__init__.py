"""The OpenAPI document, and the pages that are generated from it."""
