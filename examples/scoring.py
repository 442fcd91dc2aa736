"""Which ending does the model find likelier? Scored over one shared beginning.

Run a node with `ganglion serve`, then `python examples/scoring.py`.
"""

import sys

from ganglion import Client

url = sys.argv[1].removesuffix("/v1") if len(sys.argv) > 1 else None  # then GANGLION_URL, or this machine
model = sys.argv[2] if len(sys.argv) > 2 else "smollm2"
endings = (" the sea.", " the moon.", " a spreadsheet.")

with Client(url) as client, client.session(model) as session:
    session.append("The river flows down from the mountains into")
    scores = {ending: session.score(ending) for ending in endings}
for ending, score in sorted(scores.items(), key=lambda item: -item[1].mean):
    print(f"{score.total:8.2f} in all  {score.mean:6.2f} a token {ending}")
