# Everything runs in .venv, which needs Python 3.11 or newer, make and a package registry.
# `make` alone lists the targets.

PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo $$python; break; }; done)
SIZES ?= 100000 1000000

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
MATRIX := tests/conformance/matrix
PURE := core rules redaction wire provenance exchange
MATRIX_INSTALLED := build/matrix/.installed

.DEFAULT_GOAL := help
.PHONY: help install test cover demo lint bench bench-full bench-growth bench-peers bench-values torture conformance lock clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

install: $(INSTALLED) ## make .venv from requirements.lock

# Images often set this variable: then each process would compile turnlog and the tests again.
test cover conformance: export PYTHONDONTWRITEBYTECODE :=
# More than the cores of a small machine: many tests wait, for a time limit or the end of a process.
test: WORKERS ?= 4
test: $(INSTALLED) ## run the tests, without the network
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

cover: $(PURE:%=cover-%) ## fail if unit tests miss a line or branch of the packages without I/O

cover-%: $(INSTALLED)
	@mkdir -p build
	@$(BIN)/coverage run --data-file=build/coverage-$* --source=turnlog.$* -m pytest -q tests/unit/$*
	@echo "turnlog.$*" && $(BIN)/coverage report --data-file=build/coverage-$*

demo: $(INSTALLED) ## run a real agent and a real server through turnlog, then print the log
	$(BIN)/turnlog demo

lint: $(INSTALLED) ## check style, types and import rules
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin proxy
	$(BIN)/pyright
	$(BIN)/pyright --pythonplatform Darwin proxy
	$(BIN)/lint-imports

bench: $(INSTALLED) ## measure, and print ratios against controls
	$(BIN)/python -m benchmarks

bench-full: $(INSTALLED) ## the same for longer, with the memory over 600,000 calls
	$(BIN)/python -m benchmarks --full --soak

bench-growth: $(INSTALLED) ## measure what a store costs that grows: SIZES="100000 10000000"
	$(BIN)/python -m benchmarks.bench_store --growth $(SIZES)

bench-peers: $(INSTALLED) ## install other proxies beside, for the benchmarks to compare with
	$(BIN)/python -m benchmarks.install_peers

bench-values: $(INSTALLED) ## measure on a labelled corpus how well values are found in arguments
	PYTHONPATH=tests $(BIN)/python -m benchmarks.provenance_corpus

torture: $(INSTALLED) ## kill and stop proxies and tool server 200 times, kill 40 purges beside calls, change files of a store 1,000 times, try new examples of properties
	PYTHONPATH=tests $(BIN)/python -m faults.torture
	PYTHONPATH=tests $(BIN)/python -m faults.purges
	PYTHONPATH=tests $(BIN)/python -m faults.mutations 1000
	$(BIN)/python -m pytest -q --hypothesis-profile=new tests/property

conformance: WORKERS ?= 2
conformance: $(MATRIX_INSTALLED) ## compare direct and through turnlog: suites and clients of other versions
	$(BIN)/python -m pytest -m matrix -n $(WORKERS) --dist loadgroup -rfEP --timeout 1500 $(MATRIX)

lock: ## resolve every lock file anew
	PYTHONPATH=tests $(PYTHON) -m conformance.matrix.lock

clean: ## remove what the targets above made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(INSTALLED): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "turnlog needs Python 3.11 or newer: none found, name one with make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "turnlog needs Python 3.11 or newer: $(PYTHON) is older, name another with make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m pip check || { echo "requirements.lock is older than pyproject.toml: run make lock" >&2; exit 1; }
	@touch $@

$(MATRIX_INSTALLED): $(INSTALLED) $(wildcard $(MATRIX)/locks/*) $(MATRIX)/install.py
	PYTHONPATH=tests $(BIN)/python -m conformance.matrix.install
	@touch $@
