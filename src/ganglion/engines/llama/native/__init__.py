"""The binding to llama.cpp."""
