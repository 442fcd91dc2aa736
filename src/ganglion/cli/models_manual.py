"""What `--help` of the model commands teaches beyond the list of flags."""

MODELS = """
Examples:

  ganglion models pull Qwen/Qwen3-4B-GGUF:Q4_K_M   fetch a model from the hub
  ganglion models list                             what is on this machine
  ganglion models load Qwen/Qwen3-4B-GGUF          into a running node
  ganglion models ps                               what that node holds

list, show, resolve, pull, rm and verify look at this machine's disk; load,
unload and ps talk to a node (--url, or GANGLION_URL).
"""

LIST = """
Examples:

  ganglion models list
  ganglion models list --json | jq -r '.[] | select(.error == null) | .id'

Looks into GANGLION_HOME/models, the folders of the config, the Hugging Face
cache, LM Studio and Ollama, reads models.yaml, and adds the embedded model.
"""

SHOW = """
Examples:

  ganglion models show smollm2
  ganglion models show ~/models/qwen3-4b.gguf --context 32768

The memory is weights and KV for one sequence of that length; below it stands
what a node with this config would plan, for many sequences at once.
"""

PULL = """
Examples:

  ganglion models pull Qwen/Qwen3-4B-GGUF
  ganglion models pull Qwen/Qwen3-4B-GGUF:Q8_0
  ganglion models pull Qwen/Qwen3-4B-GGUF:Qwen3-4B-Q8_0.gguf --revision main

Files go into the Hugging Face cache and are verified by their SHA-256. What
was interrupted goes on the next time. HF_TOKEN, HF_HOME, HF_ENDPOINT and
HF_HUB_OFFLINE mean what they mean for the hub's own tools. The path of the
model, of its first part where it is split, is printed on stdout.
"""

RM = """
Examples:

  ganglion models rm Qwen3-4B-Q8_0
  ganglion models rm Qwen/Qwen3-4B-GGUF:Q8_0 --yes

Only from GANGLION_HOME/models and the Hugging Face cache. What Ollama or
LM Studio downloaded is theirs to delete.
"""

LOAD = """
Examples:

  ganglion models load smollm2
  ganglion models load Qwen/Qwen3-4B-GGUF --quant Q8_0 --context 16384 --pin
  ganglion models load smollm2 --url http://10.0.0.5:8080 --no-wait

A model that is not on the node's machine is downloaded there first. When
there is no room, the node lets go of models that nobody uses.
"""

UNLOAD = """
Examples:

  ganglion models unload smollm2
  ganglion models unload smollm2 --force
"""

RESOLVE = """
Examples:

  ganglion models resolve smollm2
  ganglion models resolve Qwen/Qwen3-4B-GGUF:Q8_0 --json | jq -r .path

Each line is one place that was asked, in the order in which a node asks them.
"""

VERIFY = """
Examples:

  ganglion models verify
  ganglion models verify Qwen3-4B-Q8_0 --json

Every byte is read. Files from a hub or from Ollama have a digest; of others
nothing says what they should be, and they are unknown.
"""

PS = """
Examples:

  ganglion models ps
  ganglion models ps --json | jq -r '.[] | select(.status == "loaded") | .id'
"""

COMPLETION = """
Examples:

  ganglion completion bash > ~/.local/share/bash-completion/completions/ganglion
  ganglion completion zsh > ~/.zfunc/_ganglion
  ganglion completion fish > ~/.config/fish/completions/ganglion.fish

A new shell then completes commands, flags and the names of models. For zsh,
~/.zfunc has to be on the fpath before compinit runs.
"""
