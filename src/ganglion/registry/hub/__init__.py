"""Models downloaded from a hub, verified and kept in the Hugging Face cache."""
