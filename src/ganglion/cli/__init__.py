"""The composition root: commands that build the pieces and start them."""
