"""Commands that run a model: chat, complete, score, session."""
