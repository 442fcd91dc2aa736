"""llama.cpp built on this machine: its source, the programs that it takes, and the build."""
