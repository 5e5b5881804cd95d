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

# The tests of the sandbox drivers are real where these can be had; elsewhere they are skipped, and say why.
SANDBOX_PACKAGES := bubblewrap podman runc busybox-static
sandbox-tools:
	@if dpkg -s $(SANDBOX_PACKAGES) >/dev/null 2>&1; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq >/dev/null 2>&1 && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(SANDBOX_PACKAGES) >/dev/null 2>&1; then \
	  echo "installed $(SANDBOX_PACKAGES) for the tests of the sandbox drivers"; \
	else \
	  echo "not all of $(SANDBOX_PACKAGES) can be installed here: the tests of their sandbox drivers are skipped"; \
	fi

# The same for the worlds that stand on other people's packages: what cannot be had is skipped, and `ludus doctor` says what is missing.
WORLD_PACKAGES := default-jre-headless chromium
world-tools: setup-test
	@if dpkg -s $(WORLD_PACKAGES) >/dev/null 2>&1; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq >/dev/null 2>&1 && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(WORLD_PACKAGES) >/dev/null 2>&1; then \
	  echo "installed $(WORLD_PACKAGES) for the tests of the worlds"; \
	else \
	  echo "not all of $(WORLD_PACKAGES) can be installed here: the tests of sciworld or browser are skipped"; \
	fi
	@if [ ! -e $(VENV)/.setup-worlds ] || [ pyproject.toml -nt $(VENV)/.setup-worlds ]; then \
	  $(PIP) install -q -c constraints.txt -e ".[worlds]" && touch $(VENV)/.setup-worlds || \
	  echo "the packages of ludus[worlds] cannot be installed here: the tests of their worlds are skipped"; \
	fi

# Many tests start, kill and time real processes. What fails beside others is tried once more alone, in sight: both outcomes are printed,
# and a failure that stays fails the suite. One that only the first run shows is a race all the same: find it.
test: setup-test sandbox-tools
	$(BIN)/python -m pytest -n 2 || $(BIN)/python -m pytest --last-failed --last-failed-no-failures none

test-worlds: setup-test sandbox-tools world-tools
	$(BIN)/python -m pytest -n 2 tests/worlds

lint: setup-lint
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples

types: setup-lint
	$(BIN)/mypy

benchmark: setup-benchmark
	@for benchmark in benchmarks/*.py; do $(BIN)/python $$benchmark || exit 1; done

clean:
	rm -rf $(VENV) runs build src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
