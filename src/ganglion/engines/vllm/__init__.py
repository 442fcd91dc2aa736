"""vLLM as an engine: Hugging Face checkpoints on GPUs, in an environment of vLLM's own.

`engine` is what the server sees, `plan` what a worker is started with, `worker/` the process. The worker runs
under vLLM's own Python, so it imports the standard library, msgspec, vLLM, and of ours what needs no more.
"""
