# Start with `make demo` and `make test`. Each sets up what it needs in a virtual environment (.venv).
PYTHON ?= python3
BIN    := .venv/bin
BASIC  := .venv/basic
READY  := .venv/ready
DIST   := .cache/dist
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
DEMO   := .cache/demo
CLUSTER := .cache/cluster-demo

.PHONY: help demo cluster-demo gpu-check test lint types contracts generated unit services accuracy bench pages docs dist lock clean

help:  ## list the targets
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/\1|\2/p' Makefile | awk -F'|' '{ printf "%-13s %s\n", $$1, $$2 }'

demo: $(BASIC)  ## simulate 16 GPUs that spin on a slow network; show a utilization dashboard's view, then the verdict
	@rm -rf $(DEMO); echo; echo '$$ trackside simulate slow-interconnect -o $(DEMO)'
	@$(BIN)/trackside simulate slow-interconnect -o $(DEMO)
	@echo; echo '$$ python tools/dashboard.py $(DEMO)/run'
	@$(BIN)/python tools/dashboard.py $(DEMO)/run
	@echo; echo '$$ trackside diagnose $(DEMO)/run'; echo
	@$(BIN)/trackside diagnose $(DEMO)/run

cluster-demo: $(READY) $(CLUSTER)/ready  ## as root: a real Slurm, agents, a receiver, jobs with faults, a table of verdicts; docs/cluster-demo.md
	@$(CLUSTER)/venv/bin/python -m lab.demo --trackside $(BIN) $(ARGS)

$(CLUSTER)/ready: lab/demo/requirements.txt
	@mkdir -p $(CLUSTER) && $(PYTHON) -m venv $(CLUSTER)/venv
	@$(CLUSTER)/venv/bin/python -m pip install --quiet --disable-pip-version-check -r lab/demo/requirements.txt
	@touch $@

gpu-check:  ## on a machine with an NVIDIA GPU: test the agent, record real faults; ARGS=--stand-in without a GPU
	@$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) tools/gpu_check.py $(ARGS)

test: lint types contracts generated $(READY)  ## all checks and all tests
	$(BIN)/pytest -n 2 --dist worksteal

$(BASIC): pyproject.toml requirements-basic.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'Trackside needs Python 3.11 or later: make PYTHON=/path/to/python3.11 ...'; exit 1; }
	@$(PYTHON) -m venv .venv || { echo 'no venv module: install python3-venv'; exit 1; }
	$(PIP) --require-hashes -r requirements-basic.lock
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(READY): $(BASIC) requirements.lock hatch_build.py $(wildcard src/trackside/agent/trace/programs/*)
	$(PIP) --require-hashes -r requirements.lock
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

lint: $(READY)  ## format, common mistakes, and names that say nothing (tools/names.py)
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/python tools/names.py

types: $(READY)  ## check types (mypy)
	$(BIN)/mypy

contracts: $(READY)  ## check which package imports which (docs/architecture.md)
	$(BIN)/lint-imports --no-cache

generated: $(READY)  ## check that generated pages are up to date
	$(BIN)/python tools/pages.py --check

unit: contracts  ## contracts, unit tests and all scenarios, without slow and service tests: three minutes on two cores
	$(BIN)/pytest -n 2 --dist worksteal -m 'not slow and not fuzz and not service and not corpus'

services:  ## as root: install the servers that service tests start, from Debian packages; without them those tests are skipped
	tools/services

accuracy: $(READY)  ## judge every labeled case, fit the confidence table, write docs/accuracy.md; needs logs that are not published
	$(BIN)/python tools/accuracy.py --write $(ARGS)

bench: $(READY)  ## log scan versus ripgrep, startup, a folder of rank logs; longer ones: docs/benchmarks.md
	$(BIN)/python bench/run.py $(ARGS)

pages: $(READY)  ## generate pages from code and scenarios
	$(BIN)/python tools/pages.py

docs: pages  ## generate pages, pictures and the screenshot; needs chromium
	$(BIN)/python tools/pictures.py
	$(BIN)/python tools/screenshot.py

dist: $(DIST)/ready  ## build wheel and sdist twice, compare and check them, and try the wheel in a clean environment
	$(DIST)/venv/bin/python tools/dist.py

$(DIST)/ready: requirements-dist.lock
	@mkdir -p $(DIST) && $(PYTHON) -m venv $(DIST)/venv
	@$(DIST)/venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dist.lock
	@touch $@

lock: LOCK = uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url
lock:  ## refresh the three requirements*.lock; needs uv
	$(LOCK) pyproject.toml --extra dev -o requirements.lock
	$(LOCK) pyproject.toml --group editable -o requirements-basic.lock
	$(LOCK) --group dist -o requirements-dist.lock

clean:
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
