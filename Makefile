# Two commands are enough: `make quickstart` and `make test`. Both install what they need into .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# One intra-op thread per worker thread is steadier than many on shared cores; passive waiting keeps idle threads off them.
export OMP_WAIT_POLICY ?= PASSIVE
export TOKENIZERS_PARALLELISM ?= false

.PHONY: help sandbox-tools world-tools setup setup-test setup-lint setup-benchmark quickstart test test-worlds lint types benchmark clean

help:
	@echo "make quickstart   a tiny agent learns three worlds on this machine's CPU (minutes)"
	@echo "make test         the test suite"
	@echo "make test-worlds  the worlds that stand on other people's packages (Java, Chromium, ...), installed where they can be had"
	@echo "make lint types   ruff and mypy"
	@echo "make benchmark    every benchmark, one JSON line per case"

# Torch first and from the constraints: a later resolver step must never replace it by a build with CUDA packages.
$(VENV)/.setup: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q -c constraints.txt torch
	$(PIP) install -q -c constraints.txt -e ".[gguf]"
	@touch $@

$(VENV)/.setup-test: $(VENV)/.setup
	$(PIP) install -q -c constraints.txt -e ".[test]"
	@touch $@

$(VENV)/.setup-lint: $(VENV)/.setup
	$(PIP) install -q -c constraints.txt -e ".[lint]"
	@touch $@

$(VENV)/.setup-benchmark: $(VENV)/.setup
	$(PIP) install -q -c constraints.txt -e ".[benchmark]"
	@touch $@

setup: $(VENV)/.setup
setup-test: $(VENV)/.setup-test
setup-lint: $(VENV)/.setup-lint
setup-benchmark: $(VENV)/.setup-benchmark

quickstart: setup
	$(BIN)/ludus quickstart

# What a test needs of Debian's packages, one by one: one that cannot be had costs only its own tests. They are skipped; `pytest -rs` says why.
# A removed package whose configuration stays is known to dpkg, so its status is asked for.
define install-packages
@missing=; for package in $(1); do \
  [ "$$(dpkg-query -W -f '$${db:Status-Status}' $$package 2>/dev/null)" = installed ] || missing="$$missing $$package"; \
done; \
[ -z "$$missing" ] || apt-get update -qq >/dev/null 2>&1; \
for package in $$missing; do \
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$package >/dev/null 2>&1 && \
  echo "installed $$package for the tests of $(2)" || \
  echo "$$package cannot be installed here: the tests of $(2) that need it are skipped"; \
done
endef

sandbox-tools:
	$(call install-packages,bubblewrap podman runc busybox-static,sandboxes)

# Drivers of database servers too: the tests play on a MariaDB or a PostgreSQL where one is installed; none is installed for them.
world-tools: setup-test
	$(call install-packages,default-jre-headless chromium,sciworld and browser)
	@if [ ! -e $(VENV)/.setup-worlds ] || [ pyproject.toml -nt $(VENV)/.setup-worlds ] || [ constraints.txt -nt $(VENV)/.setup-worlds ]; then \
	  $(PIP) install -q -c constraints.txt -e ".[worlds,database]" && touch $(VENV)/.setup-worlds || \
	  echo "the packages of ludus[worlds,database] cannot be installed here: the tests of their worlds are skipped"; \
	fi

# Many tests start, kill and time real processes. What fails beside others is tried once more alone, in sight: both outcomes are printed,
# and a failure that stays fails the suite. One that only the first run shows is a race all the same: find it.
test: setup-test sandbox-tools
	$(BIN)/python -m pytest -n 2 || $(BIN)/python -m pytest --last-failed --last-failed-no-failures none

test-worlds: setup-test sandbox-tools world-tools
	$(BIN)/python -m pytest -n 2 -rs tests/worlds

lint: setup-lint
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples

types: setup-lint
	$(BIN)/mypy

benchmark: setup-benchmark
	@for benchmark in benchmarks/*.py; do $(BIN)/python $$benchmark || exit 1; done

clean:
	rm -rf $(VENV) runs build src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
