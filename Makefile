# make demo   one document, four agents, on SmolLM2-135M (the first run installs; later runs need no network)
# make test   the tests            make lint   ruff and mypy            make docs   regenerate docs/cli.md
# make venv   only the environment make clean  remove it
#
# PYTHON=python3.12 make demo   picks the interpreter.

.DEFAULT_GOAL := demo
SHELL := /bin/bash

# OpenMP threads that spin while they wait halve the speed of a busy machine.
export OMP_WAIT_POLICY := PASSIVE
export GOMP_SPINCOUNT := 0
# Everything needed is a package; nothing is fetched from a hub.
export HF_HUB_OFFLINE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# The tests run beside each other in so many processes, each with one thread.
WORKERS := 2

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq
lock = $(shell cat $(1) | cksum | cut -d' ' -f1)

# A stamp carries the checksum of what it installed: the same lock again is a no-op, offline too.
RUN := $(VENV)/.installed-$(call lock,requirements.txt pyproject.toml)
DEV := $(VENV)/.installed-dev-$(call lock,requirements.txt requirements-dev.txt pyproject.toml)

.PHONY: demo test lint style types docs venv clean

demo: $(RUN)
	@$(BIN)/octavo bench fanout smollm2-135m --document examples/handbook.txt --questions examples/agents.toml

test: $(DEV)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal

lint: style types

style: $(DEV)
	@$(BIN)/ruff check .

types: $(DEV)
	@$(BIN)/mypy

docs: $(DEV)
	@$(BIN)/python -m octavo.cli.reference docs/cli.md

venv: $(RUN)

$(BIN)/python:
	@tools/make-venv $(VENV)

# torch goes first and with its dependencies: what they are differs by platform. The rest is the lock alone.
$(RUN): $(BIN)/python
	@echo "installing PyTorch and what requirements.txt pins (once)"
	@$(PIP) torch==2.13.0 --constraint requirements.txt
	@$(PIP) --no-deps --requirement requirements.txt
	@$(PIP) --no-deps --no-build-isolation --editable .
	@rm -f $(VENV)/.installed-*; touch $@

$(DEV): $(RUN)
	@echo "installing the test tools that requirements-dev.txt pins (once)"
	@$(PIP) --no-deps --requirement requirements-dev.txt
	@rm -f $(VENV)/.installed-dev-*; touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
