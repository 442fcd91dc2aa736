"""The binding to llama.cpp, and what is written in its formats. Imports the plan only."""
