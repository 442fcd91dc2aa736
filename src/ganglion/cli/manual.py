"""What `--help` teaches beyond the list of flags."""

ROOT = """
Examples:

  ganglion serve                          a node on http://127.0.0.1:8080
  ganglion serve ~/models/qwen3-4b.gguf   with a model file of your own
  ganglion chat                           talk to a model in this terminal
  ganglion complete "Once upon a time"    continue a text
  ganglion score "All is well."           how likely a model finds a text
  ganglion models list                    what is on this machine
  ganglion doctor                         what is wrong with this machine

ganglion COMMAND --help says more. Files lie in GANGLION_HOME (~/.ganglion).
"""

SERVE = """
Examples:

  ganglion serve
      the embedded model on http://127.0.0.1:8080, for this machine only
  ganglion serve ~/models/qwen3-4b.gguf smollm2 --parallel 32
      two models behind one address
  ganglion serve --host 0.0.0.0 --api-key "$KEY"
      for others too; a key is required then
  ganglion serve --engine echo
      no model at all: answers repeat the question, for trying clients

A MODEL is a GGUF file, the name of one in GANGLION_HOME/models, or smollm2,
the embedded model. Flags of the server, the engine and the logs can also
stand in config.toml ([server], [engine], [log]) or in the environment, as
GANGLION_SERVER__PORT=9000.
"""

CHAT = """
Examples:

  ganglion chat
  ganglion chat ~/models/qwen3-4b.gguf --system "Answer in one sentence."

In the chat, Ctrl-C stops an answer, Ctrl-D leaves, /help lists the rest.
"""

COMPLETE = """
Examples:

  ganglion complete "Once upon a time" --max-tokens 64
  ganglion complete --temperature 0 - < prompt.txt > story.txt

The text goes to the model as it stands, without a chat template.
"""

SCORE = """
Examples:

  ganglion score "The capital of France is Paris."
  ganglion score "Paris." --prompt "The capital of France is " --tokens --top 3
  ganglion score --file essay.txt --json | jq .perplexity
  ganglion score "All is well." --node http://127.0.0.1:8080 --model smollm2

Prints the sum of the tokens' logprobs (natural logarithms), their mean, and
the perplexity. On a terminal the text is shown with each token in the colour
of its logprob. What --prompt says is read first and not scored. The first
token of a text has nothing before it: it has no logprob and counts nothing.
"""

DOCTOR = """
Examples:

  ganglion doctor
  ganglion doctor --json | jq '.checks[] | select(.verdict != "ok")'

Looks at Python, the config, folders and disks, the processor, memory, the
llama.cpp library (loaded in a process of its own), the GPU, and the ports.
Each finding is ok, warn or fail. Nothing is changed and nothing is fetched.
"""
