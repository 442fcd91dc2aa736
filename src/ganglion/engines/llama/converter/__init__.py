"""Hugging Face checkpoints made into GGUF files, by the converter of the llama.cpp that we run."""
