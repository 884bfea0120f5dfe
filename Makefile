# Two commands do everything on a fresh machine: `make demo` and `make test`. `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.temperance-setup
SHARED := $(abspath ../shared/data)
export TEMPERANCE_DATA ?= $(if $(wildcard $(SHARED)),$(SHARED),)

.PHONY: help setup demo test test-slow lint types layers examples check peers bench torture clean

help:
	@echo "make demo       set up, then every method beside MAP on digits: a table, plots, out/demo/index.html"
	@echo "make test       set up, then the tests and doctests (about ten minutes on two cores)"
	@echo "make test-slow  the statistical checks that take longer"
	@echo "make check      lint, types, import layers, tests, doctests, examples: what CI runs"
	@echo "make peers      other libraries, each in an environment of its own under .venvs/, for the benchmarks"
	@echo "make bench      the benchmarks: ours beside the floor and the peers, as ratios"
	@echo "make torture    1,000 SIGKILLs and 500 Ctrl-Cs at random over all methods; what goes on must be equal to the bit"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt "torch==$$(sed -n 's/^torch==//p' constraints.txt)" setuptools
	# "compat" puts this folder on the path, so that a folder called temperance beside a script cannot hide the package
	$(BIN)/pip install -q -c constraints.txt --no-build-isolation --config-settings editable_mode=compat -e ".[dev]"
	touch $(STAMP)

demo: setup
	$(BIN)/temperance demo

test: setup
	$(BIN)/pytest -q -n 2

test-slow: setup
	$(BIN)/pytest -q -n 2 -m slow

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

layers: setup
	$(BIN)/lint-imports

examples: setup
	@set -e; for script in examples/*.py; do echo "== $$script"; $(BIN)/python $$script; done

check: lint types layers test examples
	@echo "all checks passed"

peers: setup
	$(BIN)/python -m benchmarks.peers

bench: setup
	$(BIN)/python -m benchmarks

torture: setup
	$(BIN)/python -m benchmarks.torture $(TORTURE)

clean:
	rm -rf $(VENV) .venvs out .mypy_cache .ruff_cache .pytest_cache
