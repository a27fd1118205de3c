# The two commands of the first screen are `make demo` and `make test`; everything else is for those who stay.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help tools demo build test test-compiled test-slow check format man bench clean

help:
	@echo 'make demo       a three-region fleet on this machine: replay, curves, a live switch of policy'
	@echo 'make test       the quick tests (minutes)'
	@echo 'make build      the package with its request path compiled, in build/compiled; `make test-compiled` tests it'
	@echo 'make test-slow  long runs and runs against a real engine'
	@echo 'make check      format, lint, types'
	@echo 'make tools      installs what all of these need at once, not each its own'
	@echo 'make man        write the man pages anew from the code'
	@echo 'make bench      what a hop costs, beside nginx and two Rust routers'

$(BIN)/dlbctl: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.dev: $(BIN)/dlbctl
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

$(VENV)/.real: $(VENV)/.dev
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev,real]'
	@touch $@

# All of the above in one installation, for machines that will need all of it.
tools:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev,real]'
	@touch $(BIN)/dlbctl $(VENV)/.dev $(VENV)/.real

demo: $(BIN)/dlbctl
	PATH="$(CURDIR)/$(BIN):$$PATH" sh examples/demo.sh

test: $(VENV)/.dev
	$(BIN)/pytest -n 2 -m 'not slow and not real'

build: $(VENV)/.dev
	$(BIN)/python tests/bench/compiled.py

# Tests of what is compiled; commands, engines, replays and fleets are not.
COMPILED_TESTS := $(addprefix "$(CURDIR)"/tests/,core router cases sim test_compiled.py)

# From that folder, so that `python -m dlbctl` in child processes finds what is there and not the sources.
test-compiled: build
	cd build/compiled && DLBCTL_TESTED=compiled PYTHONPATH="$(CURDIR)/build/compiled" \
	  "$(CURDIR)/$(BIN)/pytest" -c "$(CURDIR)/pyproject.toml" --rootdir "$(CURDIR)" \
	  -o pythonpath="build/compiled . tests/bench man" -n 2 -m 'not slow and not real' $(COMPILED_TESTS)

# Simulations take half the time compiled; the soak is with them because it, too, takes all the CPU there is. The rest is
# fleets, which wait more than they work: two at a time, in the order of the files, which has the longest first.
test-slow: $(VENV)/.real build
	cd build/compiled && DLBCTL_TESTED=compiled PYTHONPATH="$(CURDIR)/build/compiled" \
	  "$(CURDIR)/$(BIN)/pytest" -c "$(CURDIR)/pyproject.toml" --rootdir "$(CURDIR)" \
	  -o pythonpath="build/compiled . tests/bench man" -n 2 -m slow --timeout 300 \
	  "$(CURDIR)/tests/sim" "$(CURDIR)/tests/acceptance/test_soak.py"
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m 'slow or real' --timeout 300 \
	  --ignore tests/sim --ignore tests/acceptance/test_soak.py

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/test_layering.py

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

man: $(VENV)/.dev
	$(BIN)/python man/make_man.py man

bench: $(VENV)/.dev
	$(BIN)/python tests/bench/hop.py

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
