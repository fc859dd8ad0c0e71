# Each target sets up .venv itself and uses it again.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-slow bench docs lint clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e .
	touch $@

$(VENV)/.dev: $(VENV)/.base
	$(PIP) -e ".[dev]"
	touch $@

$(VENV)/.bench: $(VENV)/.base
	$(PIP) -e ".[bench]"
	touch $@

$(VENV)/.docs: $(VENV)/.base
	$(PIP) -e ".[docs]"
	touch $@

demo: $(VENV)/.base
	$(BIN)/privada demo

# The tests run side by side: libraries that start a thread for each core would only get in the way.
test test-slow: export OMP_NUM_THREADS = 1
test test-slow: export OPENBLAS_NUM_THREADS = 1

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist loadgroup

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) site build dist
