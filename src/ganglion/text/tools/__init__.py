"""Tool calls in the words of each family of models: read, shown to the model, and forced; pure."""
