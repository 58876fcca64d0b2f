PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help demo test lint format bench docs clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

demo: $(VENV)/demo.installed  ## train a small language model and print its profile
	$(BIN)/python examples/char_lm.py

# Tests that look at no clock run side by side; those that plant work must be alone.
SIDE_BY_SIDE := tests/program tests/models tests/databases tests/test_bounds.py tests/test_examples.py tests/test_docs.py

test: $(VENV)/test.installed  ## run all tests
	$(BIN)/python -m pytest --numprocesses 2 $(SIDE_BY_SIDE)
	$(BIN)/python -m pytest $(addprefix --ignore=,$(SIDE_BY_SIDE))

lint: $(VENV)/dev.installed  ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/dev.installed  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/test.installed  ## run the benchmarks (some minutes)
	for script in benchmarks/bench_*.py; do $(BIN)/python $$script || exit 1; done

docs: $(VENV)/docs.installed  ## trace the demo and take a picture of the trace
	$(BIN)/python examples/trace_char_lm.py --steps 100 --memory --output-dir build/traces
	$(BIN)/python docs/render_trace.py build/traces/timeline-100.json docs/trace.png --zoom "step 100"

# torch first and by name: what is installed after it has to take it as it is.
$(VENV)/torch.installed: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	touch $@

$(VENV)/%.installed: $(VENV)/torch.installed pyproject.toml
	$(PIP) --editable '.[$*]'
	touch $@

clean:  ## remove the environment and caches
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
