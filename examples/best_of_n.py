"""Best of n: several continuations of one prompt, which is read once and shared by all of them.

Run a node with `ganglion serve`, then `python examples/best_of_n.py`.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

from ganglion import Client
from ganglion.client import Result, Session

url = sys.argv[1].removesuffix("/v1") if len(sys.argv) > 1 else None  # then GANGLION_URL, or this machine
model = sys.argv[2] if len(sys.argv) > 2 else "smollm2"


def continued(branch: Session, seed: int) -> tuple[float, Result]:
    """One continuation and how likely the model finds it, a token."""
    with branch:
        result = branch.generate(max_tokens=24, temperature=0.9, seed=seed, logprobs="generated").result()
    logprobs = [token.logprob for token in result.events if token.logprob is not None]
    return sum(logprobs) / max(len(logprobs), 1), result


with Client(url) as client, client.session(model) as session, ThreadPoolExecutor(8) as threads:
    session.append("People have argued for centuries about how to brew tea, and hardly anybody agrees. ")
    session.append("Still, three things make a good cup of tea:")
    branches = [session.fork() for _ in range(8)]
    for mean, result in sorted(threads.map(continued, branches, range(8)), key=lambda each: -each[0]):
        print(f"{mean:6.2f}  {result.done.cached_tokens:3} cached  {result.text!r}")
