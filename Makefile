# `make run` trains the quickstart, `make test` checks everything; both install what they need into .venv first.
PYTHON ?= python3
VENV := .venv/bin
# Two processes, each with whole files: fixtures that start vLLM are a file's own. `make test PARALLEL=` is one process.
PARALLEL ?= -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: run test lint docs setup

run: setup
	$(VENV)/forge-host run quickstart $(ARGS)

test: lint
	$(VENV)/python -m pytest -m "not gpu" $(PARALLEL) $(ARGS)

lint: setup
	$(VENV)/python -m ruff check .
	$(VENV)/python -m mypy

docs: setup
	NO_MKDOCS_2_WARNING=1 $(VENV)/python -m mkdocs build --strict --quiet -f forge_host/docs/mkdocs.yml
	@echo "forge_host/docs/site/index.html"

setup:
	@$(PYTHON) contrib/install/install.py
