"""A token session: the node keeps the tokens, and only what is new is sent.

Run a node with `ganglion serve`, then `python examples/session.py`.
"""

import sys

from ganglion import Client

url = sys.argv[1].removesuffix("/v1") if len(sys.argv) > 1 else None  # then GANGLION_URL, or this machine
model = sys.argv[2] if len(sys.argv) > 2 else "smollm2"

with Client(url) as client, client.session(model) as session:
    session.append("The capital of France is")
    print(session.generate(max_tokens=8, temperature=0.0).text())
    session.append(" The capital of Spain is")
    answer = session.generate(max_tokens=8, temperature=0.0).result()
    print(answer.text)
    print(f"{answer.done.cached_tokens} of {answer.done.prompt_tokens} tokens cost nothing")
