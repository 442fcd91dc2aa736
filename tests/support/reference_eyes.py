"""The library's own server over a model and its projector, asked from a process of its own.

Started as `python reference_eyes.py MODEL PROJECTOR [TEMPLATE]`: chat bodies in, a JSON list of answers out.
"""

import json
import os
import sys
import urllib.request


def main() -> None:
    """Answer what stands in stdin."""
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path, parameters.mmproj.path = sys.argv[1], sys.argv[2]
    parameters.port, parameters.hostnames = 0, ["127.0.0.1"]
    parameters.n_ctx, parameters.n_parallel, parameters.warmup = 2048, 1, False
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    if len(sys.argv) > 3:
        parameters.chat_template, parameters.use_jinja = sys.argv[3], True
    server = xllamacpp.Server(parameters)
    answers = []
    for body in json.load(sys.stdin):
        request = urllib.request.Request(
            f"{server.listening_address}/v1/chat/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            answer = json.load(response)
        choice = answer["choices"][0]
        firsts = choice["logprobs"]["content"][0]["top_logprobs"] if choice.get("logprobs") else []
        answers.append(
            [
                choice["message"]["content"],
                answer["usage"]["prompt_tokens"],
                [each["logprob"] for each in firsts],
            ]
        )
    print(json.dumps(answers), flush=True)
    os._exit(0)  # its threads do not end


if __name__ == "__main__":
    main()
