"""The examples and explanations under each command's list of flags in `--help`."""

KEYS = """
Examples:

  ganglion keys create shop --requests-per-minute 60 --budget 20
  ganglion keys list
  ganglion keys revoke shop

The commands work on the gateway's database (--store, GANGLION_STORE__URL),
whether a gateway runs or not. One that runs sees a change within a second.
Once the first key exists, every request needs one.
"""

KEYS_CREATE = """
Examples:

  ganglion keys create shop
      a key without limits, printed on stdout, once and never again
  ganglion keys create trial --model tiny --tokens-per-minute 20000 --expires 2w
      one model, so many tokens a minute, for two weeks
  ganglion keys create team --requests-per-minute 60 --budget 50 --period day
      a request a second, and 50 units at the models' prices each day
  ganglion keys create box-2 --role node
      for a node that joins the fleet

A request reserves what it can take: a token for each byte of it, some for the
model's template, and max_tokens. Left out, max_tokens is 4096 or what the cap
allows. So 1000 tokens a minute do for short questions one by one, 20000 for a
few at once; what was not used comes back.

Keys of one tenant see each other's stored responses and conversations; left
out, the tenant is called like the key. Minutes, days and months are those of
UTC. The database keeps only a digest of the key, so a lost key cannot be shown
again.
"""

KEYS_LIST = """
Examples:

  ganglion keys list
  ganglion keys list --json | jq -r '.[] | select(.state == "expired") | .id'

Limits that a key does not have are written as -. Revoked keys are left out
unless --all is given.
"""

KEYS_REVOKE = """
Examples:

  ganglion keys revoke shop
  ganglion keys revoke key_5f1c09a2b7

A running gateway refuses the key within a second; answers that have begun are
finished.
"""

USAGE = """
Examples:

  ganglion usage
      what each key used in the last seven days
  ganglion usage --since 30d --by tenant --by model
  ganglion usage --since 2027-01-01 --by day --csv > january.csv

Counts come from what the models themselves reported, streams included. Cost
is in the unit in which the catalogue's prices are written. Hours and days are
those of UTC; a gateway writes what it counted every half second.
"""


FLEET = """
Examples:

  ganglion fleet status --watch      nodes, models and load, every second
  ganglion fleet plan --catalogue models.toml   what would go where
  ganglion fleet drain a             no new work for node a
  ganglion fleet move qwen3-4b b     a model to node b, away from the others

These talk to a gateway (--gateway, or GANGLION_GATEWAY), which may need a key
(--api-key, or GANGLION_API_KEY).
"""

FLEET_STATUS = """
Examples:

  ganglion fleet status
  ganglion fleet status --watch
  ganglion fleet status --json | jq -r '.nodes[] | select(.healthy | not).name'

The status of the command is 0 while every model can be served, also with a
node missing (impaired); 1 when something cannot be served (degraded), or when
the gateway does not answer; 2 for a mistake in the command.

Models that are not loaded are counted, and of a node's others the busiest are
shown; --json lists all. With --watch, --json prints one document a line.
Ctrl-C ends it.
"""

FLEET_DRAIN = """
Examples:

  ganglion fleet drain a
  ganglion fleet drain a --undo
  ganglion fleet drain a --force

A model that only this node holds is first loaded on another one. Where no other
node can hold it, nothing is changed and the exit status is 1, unless --force is
given: then requests for it are refused until another node holds it.

Requests that run on the node are finished; `ganglion fleet status --watch` shows
when none are left and the node can be stopped. Nothing is unloaded.
"""

FLEET_MOVE = """
Examples:

  ganglion fleet move qwen3-4b b
  ganglion fleet move qwen3-4b b --keep

The model is loaded on the node first and unloaded elsewhere afterwards, when
its requests there have ended, so that it can be served throughout. It may have
to be downloaded to the node first, which takes a while. Ctrl-C stops the
waiting, not the move.
"""

FLEET_PLAN = """
Examples:

  ganglion fleet plan --catalogue models.toml
  ganglion fleet plan --catalogue models.toml --node a=http://10.0.0.1:8080 \\
      --node b=http://10.0.0.2:8080

Asks a gateway (--gateway, or GANGLION_GATEWAY) or the nodes what they hold and
what is free, loads nothing, and shows where each model of the catalogue is or
would go. The most urgent ones choose first.
A node's name, where none is given, is its host and port. The exit status is 1
when a model has no place.
"""


CONCEPTS = """
Examples:

  ganglion concepts train formal --positive formal.txt --negative casual.txt
  ganglion concepts eval formal --positive more-formal.txt --negative more-casual.txt
  ganglion concepts list

A concept is a direction in what a model computes between its layers. It is
found from sentences that have something and sentences that do not, and then
says of every token how much of it there is, or pushes the model towards it.
Packs lie in GANGLION_HOME/concepts and belong to the model they were made on.
"""

CONCEPTS_TRAIN = """
Examples:

  ganglion concepts train formal --positive formal.txt --negative casual.txt
  ganglion concepts train tone --concept cheerful --positive glad.txt --negative sad.txt
  ganglion concepts train tone --concept formal --positive formal.txt --negative casual.txt --add
  ganglion concepts train formal --positive a.jsonl --negative b.jsonl --layers 8,14,20
  ganglion concepts train formal --positive formal.txt --negative casual.txt --layers best

One example a line, or {"text": "..."} a line in a file named .jsonl; at least
8 of each kind, better 40, alike in everything but the concept. Every layer is
judged on examples that were held out, by the vector that is kept (difference
of means) and by a logistic probe beside it. AUC is how often an example lies
above an opposite: 0.5 is chance, 1 is always. d' is the distance of the two
kinds in units of their spread. Where the probe is much better than the
difference of means, other things than the concept differ between the files.

auto takes four layers that separate best and lie apart. --add puts a further
concept into a pack, on the pack's layers.
"""

CONCEPTS_EVAL = """
Examples:

  ganglion concepts eval formal --positive more-formal.txt --negative more-casual.txt
  ganglion concepts eval tone --concept cheerful --positive a.txt --negative b.txt --plot auc.png

Give examples that the concept was not trained on. The plot needs matplotlib:
pip install 'ganglion[plots]'.
"""

CONCEPTS_LIST = """
Examples:

  ganglion concepts list
  ganglion concepts list --json | jq -r '.[] | select(.error == null) | .name'
"""

CONCEPTS_SHOW = """
Examples:

  ganglion concepts show formal
  ganglion concepts show ./shared/tone.safetensors --json

span is how far steering at strength 1 moves the model after a layer: the
distance between the examples and their opposites. Cosines say how alike two
concepts of a pack are; near 1, they are one concept with two names.
"""

CONCEPTS_EXPORT = """
Examples:

  ganglion concepts export formal --to ./shared
  ganglion concepts export formal --to ./shared --gguf

With --gguf a control vector of llama.cpp is written for each concept, whose
strength 1 is ours: llama-cli --control-vector-scaled FILE 1.0
"""


MODELS = """
Examples:

  ganglion models pull Qwen/Qwen3-4B-GGUF:Q4_K_M   fetch a model from the hub
  ganglion models list                             what is on this machine
  ganglion models load Qwen/Qwen3-4B-GGUF          into a running node
  ganglion models ps                               what that node holds

list, show, resolve, pull, rm and verify look at this machine's disk; load,
unload and ps talk to a node (--url, or GANGLION_URL).
"""

MODELS_LIST = """
Examples:

  ganglion models list
  ganglion models list --json | jq -r '.[] | select(.error == null) | .id'

Looks into GANGLION_HOME/models, the folders of the config, the Hugging Face
cache, LM Studio and Ollama, reads models.yaml, and adds the embedded model.
"""

MODELS_SHOW = """
Examples:

  ganglion models show smollm2
  ganglion models show ~/models/qwen3-4b.gguf --context 32768

The memory is weights and KV for one sequence of that length; below it stands
what a node with this config would plan, for many sequences at once.
"""

MODELS_PULL = """
Examples:

  ganglion models pull Qwen/Qwen3-4B-GGUF
  ganglion models pull Qwen/Qwen3-4B-GGUF:Q8_0
  ganglion models pull Qwen/Qwen3-4B-GGUF:Qwen3-4B-Q8_0.gguf --revision main

Files go into the Hugging Face cache and are verified by their SHA-256. An
interrupted download is resumed the next time. HF_TOKEN, HF_HOME, HF_ENDPOINT
and HF_HUB_OFFLINE work as they do for the hub's own tools. The path of the
model, or of its first part where it is split, is printed on stdout.
"""

MODELS_RM = """
Examples:

  ganglion models rm Qwen3-4B-Q8_0
  ganglion models rm Qwen/Qwen3-4B-GGUF:Q8_0 --yes

Only from GANGLION_HOME/models and the Hugging Face cache. What Ollama or
LM Studio downloaded is theirs to delete.
"""

MODELS_LOAD = """
Examples:

  ganglion models load smollm2
  ganglion models load Qwen/Qwen3-4B-GGUF --quant Q8_0 --context 16384 --pin
  ganglion models load smollm2 --url http://10.0.0.5:8080 --no-wait

A model that is not on the node's machine is downloaded there first. When
there is no room, the node unloads models that are not in use.
"""

MODELS_UNLOAD = """
Examples:

  ganglion models unload smollm2
  ganglion models unload smollm2 --force
"""

MODELS_RESOLVE = """
Examples:

  ganglion models resolve smollm2
  ganglion models resolve Qwen/Qwen3-4B-GGUF:Q8_0 --json | jq -r .path

Each line is one place that was searched, in the order in which a node does it.
"""

MODELS_VERIFY = """
Examples:

  ganglion models verify
  ganglion models verify Qwen3-4B-Q8_0 --json

Every byte is read. Files from a hub or from Ollama have a digest to compare
with; other files have none, and are reported as unknown.
"""

MODELS_PS = """
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
  ganglion engines build llama --cuda     use a GPU
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
      no model at all: answers repeat the prompt, for trying out clients

A MODEL is a GGUF file, the name of one in GANGLION_HOME/models, or smollm2,
the embedded model. Every flag but MODEL and --served-name is also a key of
config.toml (--port is port under [server]) and an environment variable
(GANGLION_SERVER__PORT=9000); docs/configuration.md lists them.
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

ganglion fleet status shows the nodes, ganglion keys create makes keys with
limits, and docs/fleet.md leads from one machine to a fleet.
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
of its logprob. The text of --prompt is read first and not scored. The first
token of a text has nothing before it, so it has no logprob and does not count.
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
