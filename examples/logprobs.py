"""See how sure a model was of each token: python logprobs.py [BASE_URL] (pip install openai)."""

import math
import os
import sys

from openai import OpenAI

node = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("GANGLION_URL", "http://127.0.0.1:8080")
base_url = node.removesuffix("/v1") + "/v1"
client = OpenAI(base_url=base_url, api_key=os.environ.get("GANGLION_API_KEY", "none"))

answer = client.chat.completions.create(
    model=client.models.list().data[0].id,
    messages=[{"role": "user", "content": "The capital of France is"}],
    max_tokens=16,
    temperature=0,
    logprobs=True,
    top_logprobs=3,
)
for token in answer.choices[0].logprobs.content:
    others = ", ".join(f"{other.token!r} {math.exp(other.logprob):.0%}" for other in token.top_logprobs)
    print(f"{token.token!r:>14} {math.exp(token.logprob):5.0%}   {others}")
