"""OpenAI's Responses API: chats whose turns are stored here, answered as a whole, as a stream or in the background."""
