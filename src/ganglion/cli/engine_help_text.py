"""The examples and explanations in `--help` of the commands about engines."""

ENGINES = """
Examples:

  ganglion engines list                  what is here, and what each can use
  ganglion engines build llama --cuda    llama.cpp for an NVIDIA GPU
  ganglion engines install vllm          vLLM, for Hugging Face checkpoints
  ganglion engines remove vllm           the disk space back

An engine computes what a model answers. llama.cpp comes with Ganglion, for
processors, and reads GGUF files; built here it uses a GPU too. vLLM reads
Hugging Face checkpoints. Both lie in GANGLION_HOME/engines, and the next node
that starts finds them. ganglion doctor says which one fits this machine.
"""

ENGINES_LIST = """
Examples:

  ganglion engines list
  ganglion engines list --json | jq -r '.[] | select(.problem == null) | .engine'

llama stands there once for each library: the one of GANGLION_LIBLLAMA, the one
that was built here, and the one that comes with Ganglion; the first that can be
used is used. Libraries are tried in a process of their own. --check imports
vLLM, too, and asks it for its devices.
"""

ENGINES_BUILD = """
Examples:

  ganglion engines build llama --cuda
  ganglion engines build llama --vulkan --jobs 4
  ganglion engines build llama --cuda --define CMAKE_CUDA_ARCHITECTURES=90
      for another GPU than the one that is here
  ganglion engines build llama --hip --source ~/xllamacpp-2026.10.11549.tar.gz
      without a network

Takes CMake, a C++ compiler, Ninja or Make, and the toolkit of the GPU: CUDA,
the Vulkan SDK, or ROCm. Fetches the source of exactly the llama.cpp that comes
with Ganglion, 38 MB with a digest that is checked, compiles it, tries it in a
process of its own, and puts it into GANGLION_HOME/engines/llama. Every node
that starts afterwards uses it, and runs on the GPU.

Minutes on a large machine, half an hour and more on a small one. A build that
was stopped goes on when the command is given again. After an upgrade of
Ganglion that brings another llama.cpp, the build is not used until it was made
again; doctor and engines list say so.
"""

ENGINES_INSTALL = """
Examples:

  ganglion engines install vllm
      for the GPU that is here; without one, for the processor
  ganglion engines install vllm --cuda --python python3.12
  ganglion engines install vllm --index-url https://pypi.example.com/simple

Makes a Python environment in GANGLION_HOME/engines/vllm that nothing else
shares, and installs one tested set of packages into it, each checked against
its digest: about 4 GB for processors, several times that for CUDA. It imports
vLLM there once and says what it found. Only what was finished and imports is
used; an installation that was stopped goes on when the command is given again.

GANGLION_VLLM_PYTHON, or python under [engine.vllm], names the Python of a vLLM
that is installed already; then nothing has to be installed here.
"""

ENGINES_REMOVE = """
Examples:

  ganglion engines remove vllm
  ganglion engines remove llama
      what was built here; the library that comes with Ganglion stays

What a running node uses is not removed.
"""
