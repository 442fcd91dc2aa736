"""Stream an answer with nothing but the standard library: python stream_raw.py [BASE_URL]."""

import json
import os
import sys
import urllib.request

node = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("GANGLION_URL", "http://127.0.0.1:8080")
base_url = node.removesuffix("/v1") + "/v1"
headers = {"authorization": f"Bearer {os.environ.get('GANGLION_API_KEY', 'none')}"}
with urllib.request.urlopen(urllib.request.Request(f"{base_url}/models", headers=headers)) as response:
    model = json.load(response)["data"][0]["id"]

body = {"model": model, "messages": [{"role": "user", "content": "Name three colours."}], "stream": True}
request = urllib.request.Request(
    f"{base_url}/chat/completions",
    data=json.dumps(body | {"max_tokens": 64}).encode(),
    headers=headers | {"content-type": "application/json"},
)
with urllib.request.urlopen(request) as response:
    for line in response:
        if line.startswith(b"data: {"):
            chunk = json.loads(line.removeprefix(b"data: "))
            if "error" in chunk:
                sys.exit(chunk["error"]["message"])
            for choice in chunk["choices"]:
                print(choice["delta"].get("content") or "", end="", flush=True)
print()
