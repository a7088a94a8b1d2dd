"""Endpoints that fit in one module each, among them Anthropic's Messages API."""
