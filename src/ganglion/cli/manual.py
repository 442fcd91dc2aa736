"""What `--help` teaches beyond the list of flags."""

ROOT = """
Examples:

  ganglion serve                          a node on http://127.0.0.1:8080
  ganglion serve ~/models/qwen3-4b.gguf   with a model file of your own
  ganglion gateway --node URL --node URL  many nodes as one
  ganglion chat                           talk to a model in this terminal
  ganglion complete "Once upon a time"    continue a text
  ganglion score "Once upon a time"       how likely a text is
  ganglion session                        drive a token session by hand
  ganglion concepts train --help          find, read and steer concepts
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

GATEWAY = """
Examples:

  ganglion gateway --node http://127.0.0.1:8081 --node http://127.0.0.1:8082
      two nodes of ours behind http://127.0.0.1:8000
  ganglion gateway, and on each machine: ganglion serve --join http://GATEWAY:8000
      nodes that come and go by themselves
  ganglion gateway --node openai+http://127.0.0.1:11434 --node openai+https://api.example.com
      any OpenAI-compatible server; Responses and Messages are translated for it
  ganglion gateway --config fleet.toml --store postgresql://…
      nodes with keys and caps, and several gateways that share their limits

ganglion fleet status shows who is there, ganglion keys create makes keys with
limits, docs/fleet.md goes from one box to a fleet.
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

SESSION = """
Examples:

  ganglion session
  ganglion session smollm2 --url http://127.0.0.1:9000
  ganglion session --steer formal=1.5
      with a concept that the node was started with

What you type is appended to the session. /generate goes on from it, /tokens
shows how likely each token was, /read what the node reads out of them, /fork
goes on in a copy, /help lists the rest. The session ends with the program.
"""

DOCTOR = """
Examples:

  ganglion doctor
  ganglion doctor --json | jq '.checks[] | select(.verdict != "ok")'

Looks at Python, the config, folders and disks, the processor, memory, the
llama.cpp library (loaded in a process of its own), the GPU, and the ports.
Each finding is ok, warn or fail. Nothing is changed and nothing is fetched.
"""
