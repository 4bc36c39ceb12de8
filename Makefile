# One command for each thing people do here; `make` alone lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYVERBS := /usr/lib/python3/dist-packages/pyverbs

.PHONY: help
help: ## List the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

# pyverbs is the distribution's: linked in, so that nothing else of the system's packages leaks into the environment.
$(VENV)/.made: requirements/dev.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --require-hashes -r requirements/dev.txt
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	if [ -d $(PYVERBS) ]; then ln -sfn $(PYVERBS) "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_paths()["platlib"])')/pyverbs"; fi
	touch $@

.PHONY: venv
venv: $(VENV)/.made ## Make the development environment (.venv)

.PHONY: run
run: venv ## Check the fabric of this machine, without Kubernetes
	@$(BIN)/fabric-ready check
