"""This machine's processor, memory, accelerators and native library."""
