"""The OpenAPI document, and the pages made of it."""
