# One command for each thing people do here; `make` alone lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
# The distribution's interpreter, since pyverbs is the distribution's and fits no other.
PYTHON ?= $(firstword $(wildcard /usr/bin/python3) python3)
VENV := .venv
BIN := $(VENV)/bin
PYVERBS := /usr/lib/python3/dist-packages/pyverbs
# What a fresh Debian lacks before any Python of ours can run; the rig installs the rest of its own.
PACKAGES := ca-certificates gcc libc6-dev python3 python3-venv python3-pyverbs ibverbs-providers
KEEP ?=

.PHONY: help
help: ## List the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{sub(/:.*/, "", $$1); printf "  make %-12s %s\n", $$1, $$2}'

.PHONY: demo
demo: venv ## Show the whole thing on two emulated nodes (root; KEEP=1 leaves the cluster up)
	@$(BIN)/python -m tests.cluster.demo $(if $(KEEP),--keep)

.PHONY: demo-down
demo-down: venv ## Remove what `make demo KEEP=1` left running
	@$(BIN)/python -m tests.cluster down

.PHONY: run
run: venv ## Check the fabric of this machine, without Kubernetes
	@$(BIN)/fabric-ready check $(ARGS)

.PHONY: test
test: venv ## Run every test, the emulated cluster included (root)
	@mkdir -p build
	$(BIN)/python -m pytest --junit-xml=build/tests.xml $(ARGS)

.PHONY: quick
quick: venv ## Run the tests that need neither API server nor cluster
	$(BIN)/python -m pytest -m "not apiserver and not cluster" $(ARGS)

.PHONY: check
check: venv ## Style, types, import arrows, YAML and packaging metadata
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/yamllint --strict manifests
	$(BIN)/validate-pyproject pyproject.toml

.PHONY: bench
bench: venv ## Measure against the budgets; table and build/bench.json (root; takes half an hour)
	@mkdir -p build
	@$(BIN)/python -m tests.cluster.bench $(ARGS)

.PHONY: docs
docs: venv ## Write docs/settings.md and docs/metrics.md from the code
	@$(BIN)/python -m tests.documents

.PHONY: image
image: venv ## Build the container image without a container engine (root)
	@$(BIN)/python -m tests.cluster image

.PHONY: venv
venv: $(VENV)/.made ## Make the development environment (.venv)

$(VENV)/.made: requirements/dev.txt pyproject.toml
	@missing=$$(for package in $(PACKAGES); do dpkg-query -W -f '$${db:Status-Status}' $$package 2>/dev/null | grep -qx installed || echo $$package; done); \
	if [ -n "$$missing" ]; then \
		if [ "$$(id -u)" = 0 ]; then \
			echo "installing" $$missing; \
			export DEBIAN_FRONTEND=noninteractive; \
			apt-get update -qq && apt-get install -qq --yes --no-install-recommends $$missing >/dev/null; \
		else \
			echo "missing packages:" $$missing "(install them, or run make as root once)" >&2; \
		fi; \
	fi
	@echo "making $(VENV)"
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@# pyverbs is linked in alone, so that nothing else of the system's packages leaks into the environment.
	@if [ -d $(PYVERBS) ]; then ln -sfn $(PYVERBS) "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_paths()["platlib"])')/pyverbs"; fi
	@touch $@

.PHONY: lock
lock: venv ## Pin the dependencies again, with hashes (needs uv)
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate -o requirements/runtime.txt pyproject.toml
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate -o requirements/dev.txt --group dev pyproject.toml
	echo hatchling | uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate -c requirements/dev.txt -o requirements/build.txt -

.PHONY: clean
clean: ## Remove what make built here (not the caches outside the checkout)
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .coverage
