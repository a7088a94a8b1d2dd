"""/v1/chat/completions: conversation, reasoning and tool calls."""
