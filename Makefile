# SPDX-License-Identifier: GPL-2.0-or-later
# One command each: `make run` (demo), `make test` (lint, types, every test), `make bench`.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= /usr/bin/python3
VENV := .venv
PY := $(VENV)/bin/python
APT := clang llvm gcc libc6-dev make cmake ninja-build pkg-config bpftool libbpf-dev libelf-dev zlib1g-dev \
       libnl-3-dev ethtool iproute2 iperf3 curl procps python3-dev python3-venv kmod bc
C_SOURCES := $(wildcard atfnd/bpf/*.c atfnd/bpf/*.h atfnd/bpf/CMakeLists.txt)
NAME ?= all
export CMD ?= uname -a; lscpu
GUEST ?=

help: ## what each target does
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

build/.apt: Makefile
	@mkdir -p build
	@missing=""; for p in $(APT); do dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then echo "installing:$$missing"; apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends $$missing; fi
	@touch $@

build/.venv: pyproject.toml build/.apt
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/pip install -q --disable-pip-version-check "scikit-build-core>=0.10" \
	  $$($(PYTHON) -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; print(*[repr(d) for d in p["dependencies"] + p["optional-dependencies"]["dev"]])' | tr -d "'")
	@touch $@

build/.ext: build/.venv $(C_SOURCES)
	@$(VENV)/bin/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

setup: build/.ext ## install what is needed and build the extension

run: setup ## demo: lab NIC, daemon, real traffic; ends with build/run.json
	@$(PY) -m bench.demo

test: setup lint ## lint, types and every test
	@$(PY) -m pytest

test-nic: setup ## prove a real NIC: NIC=eth2 make test-nic (docs/testing.md)
	@test -n "$(NIC)" || { echo "name it: NIC=eth2 make test-nic" >&2; exit 2; }
	@NIC=$(NIC) $(PY) -m pytest tests/nic

lint: setup ## ruff and mypy --strict
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy

docs: setup ## write the reference of policy keys in docs/policies.md
	@$(PY) -m atfnd.policy.reference docs/policies.md

bench: setup ## all benchmarks, or one: make bench NAME=reaction
	@$(PY) -m bench $(NAME)

guest: setup ## a command in the guest: make guest CMD="nproc" [GUEST="--nic igb:2"]
	@$(PY) -m tests.guest $(GUEST) -- bash -c "$$CMD"

clean: ## remove everything built
	rm -rf build $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

.PHONY: help setup run test test-nic lint docs bench guest clean
