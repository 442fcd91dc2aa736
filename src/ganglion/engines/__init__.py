"""Everything that answers: echo for tests and demos, llama for real models."""
