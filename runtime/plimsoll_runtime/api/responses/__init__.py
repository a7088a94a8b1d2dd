"""OpenAI's Responses API: a chat whose turns are kept here, whole, streamed or in the background."""
