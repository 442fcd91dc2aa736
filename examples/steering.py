"""Steer what the model writes with a concept's own vector.

Train and serve a concept as examples/readout.py says, then `python examples/steering.py`.
"""

import sys

from ganglion import Client
from ganglion.client import Steer

url = sys.argv[1].removesuffix("/v1") if len(sys.argv) > 1 else None  # then GANGLION_URL, or this machine
model = sys.argv[2] if len(sys.argv) > 2 else "smollm2"

with Client(url) as client:
    concept = client.readout_manifest(model).concepts[0]
    for strength in (-2.0, 0.0, 2.0):
        steering = [Steer(concept, strength)] if strength else []
        with client.session(model, steering=steering) as session:
            session.append("About the meeting tomorrow:")
            text = session.generate(max_tokens=24, temperature=0.0).text()
            print(f"{concept} {strength:+.1f}: {text!r}")
