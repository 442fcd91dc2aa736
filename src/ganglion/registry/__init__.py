"""Which model is meant, where its file is, and what its header says."""
