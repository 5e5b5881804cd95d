# Two commands are enough: `make quickstart` and `make test`. Both install what they need into .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# One intra-op thread per worker thread is steadier than many on shared cores; passive waiting keeps idle threads off them.
export OMP_WAIT_POLICY ?= PASSIVE
export TOKENIZERS_PARALLELISM ?= false

.PHONY: help setup setup-lint setup-benchmark quickstart test lint types benchmark clean

help:
	@echo "make quickstart   a tiny agent learns three worlds on this machine's CPU (minutes)"
	@echo "make test         the test suite"
	@echo "make lint types   ruff and mypy"
	@echo "make benchmark    every benchmark, one JSON line per case"

# Torch first and from the constraints: a later resolver step must never replace it by a build with CUDA packages.
$(VENV)/.setup: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q -c constraints.txt torch
	$(PIP) install -q -c constraints.txt -e ".[test,gguf]"
	@touch $@

$(VENV)/.setup-lint: $(VENV)/.setup
	$(PIP) install -q -c constraints.txt -e ".[lint]"
	@touch $@

$(VENV)/.setup-benchmark: $(VENV)/.setup
	$(PIP) install -q -c constraints.txt -e ".[benchmark]"
	@touch $@

setup: $(VENV)/.setup
setup-lint: $(VENV)/.setup-lint
setup-benchmark: $(VENV)/.setup-benchmark

quickstart: setup
	$(BIN)/ludus quickstart

test: setup
	$(BIN)/python -m pytest -n 2

lint: setup-lint
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples

types: setup-lint
	$(BIN)/mypy

benchmark: setup-benchmark
	@for benchmark in benchmarks/*.py; do $(BIN)/python $$benchmark || exit 1; done

clean:
	rm -rf $(VENV) runs build src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
