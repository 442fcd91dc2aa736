"""The peer: llama.cpp's own HTTP server, as xllamacpp carries it, until a signal ends it."""

from __future__ import annotations

import argparse
import os
import signal

import xllamacpp


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peer", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--model", required=True, help="path of a GGUF file")
    parser.add_argument("--name", required=True, help="the model's name on the wire")
    parser.add_argument("--parallel", type=int, default=16)
    parser.add_argument("--context", type=int, default=32768)
    parser.add_argument("--unified", action="store_true", help="one cache for all slots, not one each")
    parser.add_argument("--mmproj", help="path of the projector of a model that sees")
    parser.add_argument("--embedding", action="store_true", help="make vectors by mean pooling")
    arguments = parser.parse_args()

    signals = {signal.SIGTERM, signal.SIGINT}
    # Blocked before the server's threads exist: they inherit the mask, and sigwait is the one receiver.
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    params = xllamacpp.CommonParams()
    params.model.path = arguments.model
    params.model_alias = {arguments.name}
    params.hostnames = ["127.0.0.1"]
    params.port = arguments.port
    params.n_parallel = arguments.parallel
    params.n_ctx = arguments.context
    params.kv_unified = arguments.unified
    if arguments.embedding:
        params.embedding = True
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    if arguments.mmproj:
        params.mmproj.path = arguments.mmproj
    params.cpuparams.n_threads = arguments.threads
    params.cpuparams_batch.n_threads = arguments.threads
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    signal.sigwait(signals)
    # Leaving through the interpreter's end would wait for the server's threads; there is nothing to save.
    os._exit(0)


if __name__ == "__main__":
    main()
