"""Anthropic's Messages API: its requests become chats, and its clients are told of answers in its form."""
