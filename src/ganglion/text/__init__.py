"""Messages to prompt, token bytes to content and reasoning; pure."""
