"""llama.cpp's HTTP server in a process of its own: `serve_llama.py MODEL ALIAS PORT` prints `listening URL`.

PORT 0 takes a free one. Two slots, one thread, and a context long enough for a stream of several seconds.
"""

from __future__ import annotations

import signal
import sys

import xllamacpp


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    model, alias, port = sys.argv[1:]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})  # the server's threads inherit it
    server = xllamacpp.Server(_parameters(model, alias, int(port)))
    print(f"listening {server.listening_address}", flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


def _parameters(model: str, alias: str, port: int) -> xllamacpp.CommonParams:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = model
    parameters.model_alias = {alias}
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = port
    parameters.n_ctx, parameters.n_parallel = 65536, 2
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    parameters.endpoint_metrics = True
    parameters.offline, parameters.ui = True, False
    parameters.verbosity = 1
    return parameters


if __name__ == "__main__":
    main()
