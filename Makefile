# Two commands do all: `make demo` and `make test`. `make help` lists the rest.
SHELL := /bin/bash
VENV := .venv
DOCS := build/docs
# Temporary files of tests are in memory if 8 GB of it are free: stores flush each file, and on a disk tests wait for that.
MEMORY := $(shell df --output=avail -k /dev/shm 2>/dev/null | awk 'NR == 2 && $$1 > 8e6 { print "/dev/shm" }')
TEMPORARY := $(or $(MEMORY),/tmp)/distlfm-tests
# No test may lean on another: `make test ORDER_SEED=n` repeats the order of a run that printed n.
ORDER_SEED ?= random
# Compiled modules are kept, whatever the shell has: else each of the many processes would compile all that it imports.
pytest = @folder=$(TEMPORARY)-$$$$; trap 'rm -rf $$folder' EXIT; \
	PYTHONDONTWRITEBYTECODE= $(VENV)/bin/python -m pytest --basetemp=$$folder --order-seed $(ORDER_SEED)

.DEFAULT_GOAL := help
.PHONY: help setup setup-tests demo test check docs lint format test-release lock sbom clean

help:  ## what each target does
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup:  ## system packages and .venv
	@launch/bootstrap.sh

setup-tests:
	@launch/bootstrap.sh --tests

demo: setup  ## the main job end to end on this machine, under 5 minutes after the installation
	@$(VENV)/bin/distlfm demo --out runs/demo

test: setup-tests  ## the whole test-suite with the real FEniCS, MPI, Ray, Slurm and Flower
	@echo "[test] fast tests first, then those that start real processes, two files side by side"
	$(pytest) -m "not slow" -q -n auto
	$(pytest) -m slow -q -n 2 --dist loadfile --durations=40 --durations-min=10

check: setup  ## the fast subset for daily work, under 3 minutes
	$(pytest) -m "not slow" -q -n auto

docs: setup  ## the documentation as pages in build/docs; a warning is an error
	@$(VENV)/bin/sphinx-build -E -W --keep-going -q -j auto -c docs/sphinx . $(DOCS)
	@echo "[docs] $(DOCS)/index.html"

lint: setup  ## ruff, mypy --strict, import-linter, shell scripts and Dockerfiles
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports
	@$(VENV)/bin/shellcheck -x launch/*.sh slurm/*.sh slurm/*.sbatch tests/release/*.sh tests/golden/*.sbatch .ci/run
	@$(VENV)/bin/hadolint docker/Dockerfile docker/Dockerfile.cuda

format: setup  ## rewrite the sources in the house format
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .

test-release: setup-tests  ## `make demo`, then the set-up in a clean Debian root (needs root)
	@$(MAKE) demo
	@tests/release/clean_root.sh

lock: ## resolve the dependencies anew into constraints.txt
	@launch/bootstrap.sh --lock

sbom: setup  ## what the environment is made of, as CycloneDX in build/sbom.json
	@mkdir -p build
	@$(VENV)/bin/cyclonedx-py environment $(VENV)/bin/python --pyproject pyproject.toml --mc-type application \
		--output-reproducible --output-format JSON --output-file build/sbom.json
	@echo "[sbom] build/sbom.json"

clean:  ## remove the environment and caches; runs/ stays
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis *.egg-info build dist
