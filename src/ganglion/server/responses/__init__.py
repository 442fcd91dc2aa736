"""The doors of the Responses wire: answering, keeping, and everything that is asked of what was kept."""
