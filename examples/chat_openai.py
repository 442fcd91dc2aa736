"""Chat with a node through the OpenAI SDK: python chat_openai.py [BASE_URL] (pip install openai)."""

import os
import sys

from openai import OpenAI

node = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("GANGLION_URL", "http://127.0.0.1:8080")
base_url = node.removesuffix("/v1") + "/v1"
client = OpenAI(base_url=base_url, api_key=os.environ.get("GANGLION_API_KEY", "none"))
model = client.models.list().data[0].id

messages = [{"role": "user", "content": "Name three colours."}]
stream = client.chat.completions.create(model=model, messages=messages, max_tokens=64, stream=True)
for chunk in stream:
    if chunk.choices and chunk.choices[0].delta.content:
        print(chunk.choices[0].delta.content, end="", flush=True)
print()
