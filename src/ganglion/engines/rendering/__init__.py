"""Chat templates, rendered in child processes that can be killed. Imports the child processes and text."""
