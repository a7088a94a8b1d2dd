"""Chats: what a model is shown of them, its thoughts, and its calls of tools."""
