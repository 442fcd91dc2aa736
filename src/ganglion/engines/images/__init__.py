"""Pictures, decoded in child processes that can be killed. Imports the child processes; Pillow only in the child."""
