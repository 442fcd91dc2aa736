"""Where responses and conversations live, so that an answer outlasts its connection and its server."""
