"""The endpoints that fit in one module each, Anthropic's Messages API among them."""
