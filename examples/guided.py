"""An agent's session: chat by the model's own template, answers in JSON, and the best of several.

Run a node with `ganglion serve`, then `python examples/guided.py`.
"""

import json
import sys

from ganglion import Client

url = sys.argv[1].removesuffix("/v1") if len(sys.argv) > 1 else None  # then GANGLION_URL, or this machine
model = sys.argv[2] if len(sys.argv) > 2 else "smollm2"
schema = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 24}, "warm": {"type": "boolean"}},
    "required": ["name", "warm"],
}

with Client(url) as client, client.session(model) as session:
    session.append_messages([{"role": "user", "content": "Name a colour."}])
    colour = json.loads(session.generate(json_schema=schema, max_tokens=128, temperature=0.0).text())
    print("as JSON:", colour)
    session.append_messages([{"role": "user", "content": f"Praise {colour['name']} in one sentence."}])
    (best,) = session.best_of(4, max_tokens=48, temperature=0.9, stop=["\n"])
    print(f"best of four, {best.mean:.2f} a token:", best.text)
    session.append_messages([{"role": "user", "content": "Is it your favourite?"}])
    print("one of two:", session.generate(choice=["Yes.", "No."]).text())
