"""llama.cpp as an engine: text over tokens over a worker process over the native library.

Imports flow down that way; what the engines share lies beside this folder.
"""
