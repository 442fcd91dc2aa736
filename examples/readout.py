"""Read concepts out of the residual stream while the model writes.

Train a concept, serve it, then `python examples/readout.py`:
    cd examples/concepts && ganglion concepts train formality --positive formal.txt --negative casual.txt
    ganglion serve --concepts formality
"""

import sys

from ganglion import Client

url = sys.argv[1].removesuffix("/v1") if len(sys.argv) > 1 else None  # then GANGLION_URL, or this machine
model = sys.argv[2] if len(sys.argv) > 2 else "smollm2"

with Client(url) as client, client.session(model) as session:
    manifest = client.readout_manifest(model)
    print("concepts:", ", ".join(manifest.concepts), "after layers", manifest.layers)
    session.append("Dear Sir or Madam, I am writing to")
    for event in session.generate(max_tokens=16, temperature=0.0, readout="all"):
        if (readout := getattr(event, "readout", None)) is not None:
            values = readout.layer(manifest.layers[-1])
            print(f"{event.text!r:>16} ", *(f"{name} {value:+.2f}" for name, value in values.items()))
