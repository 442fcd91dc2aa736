"""What `--help` of the concept commands teaches beyond the list of flags."""

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

TRAIN = """
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

EVAL = """
Examples:

  ganglion concepts eval formal --positive more-formal.txt --negative more-casual.txt
  ganglion concepts eval tone --concept cheerful --positive a.txt --negative b.txt --plot auc.png

Give examples that the concept was not trained on. The plot needs matplotlib:
pip install 'ganglion[plots]'.
"""

LIST = """
Examples:

  ganglion concepts list
  ganglion concepts list --json | jq -r '.[] | select(.error == null) | .name'
"""

SHOW = """
Examples:

  ganglion concepts show formal
  ganglion concepts show ./shared/tone.safetensors --json

span is how far steering at strength 1 moves the model after a layer: the
distance between the examples and their opposites. Cosines say how alike two
concepts of a pack are; near 1, they are one concept with two names.
"""

EXPORT = """
Examples:

  ganglion concepts export formal --to ./shared
  ganglion concepts export formal --to ./shared --gguf

With --gguf a control vector of llama.cpp is written for each concept, whose
strength 1 is ours: llama-cli --control-vector-scaled FILE 1.0
"""
