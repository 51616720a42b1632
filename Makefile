# `make` lists the targets. Every target that needs the environment sets it up first, and again when what it is made
# of has changed.
SHELL := /bin/sh
.DEFAULT_GOAL := help

# The Python that the environment is made with, and more arguments for pip.
PYTHON ?= python3
PIP_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
# Written last by a complete installation. It holds the path of the checkout, because an environment does not survive
# being moved or copied.
STAMP := $(VENV)/kvtroupe-installed
USABLE := $(shell $(BIN)/python -c pass 2>/dev/null && test "$$(cat $(STAMP) 2>/dev/null)" = "$$(pwd -P)" && echo yes)
ifneq ($(USABLE),yes)
.PHONY: $(STAMP)
endif

TRACE := examples/traces/mooncake_conversation.jsonl.xz
TYPECHECK := build/typecheck

.PHONY: help setup demo test lint types check bench clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile

setup: $(STAMP) ## make the environment in .venv

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "kvtroupe needs Python 3.11 or newer, but '$(PYTHON)' is: $$($(PYTHON) --version 2>&1)." >&2; \
	  echo "Name another one: make setup PYTHON=python3.12" >&2; exit 1; }
	@test "$(USABLE)" = yes || $(PYTHON) -m venv --clear $(VENV)
	@rm -f $(STAMP)
	$(BIN)/python -m pip install --constraint constraints.txt $(PIP_ARGS) --editable '.[dev]'
	@pwd -P > $(STAMP)

demo: $(STAMP) ## replay an hour of a real service and check every block that is reused
	$(BIN)/kvtroupe replay $(TRACE) --sequential --device-blocks 10000

test: $(STAMP) ## run the tests
	$(BIN)/python -m pytest

lint: $(STAMP) ## check the style of the code
	$(BIN)/ruff check
	$(BIN)/ruff format --check

# Type checkers run no import hooks, so they get a tree in which the import package exists: symbolic links.
types: $(STAMP) ## check the types
	@mkdir -p $(TYPECHECK)/kvtroupe
	@ln -sfn ../../../actors/public/__init__.py $(TYPECHECK)/kvtroupe/__init__.py
	@for folder in actors coordinator kernels; do ln -sfn ../../../$$folder $(TYPECHECK)/kvtroupe/$$folder; done
	@for folder in benchmarks tests; do ln -sfn ../../$$folder $(TYPECHECK)/$$folder; done
	cd $(TYPECHECK) && ../../$(BIN)/mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache \
	  kvtroupe benchmarks tests

check: lint types test ## all that a change has to pass

bench: $(STAMP) ## measure admission
	$(BIN)/python -m benchmarks.admission

clean: ## remove the environment and everything that is built
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
	find actors benchmarks coordinator kernels tests -name __pycache__ -prune -exec rm -rf {} +
