"""Pictures, decoded in children that can be killed. Imports the child processes; the child imports Pillow."""
