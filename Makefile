# SPDX-License-Identifier: GPL-2.0-or-later
# One command each: `make run` (demo), `make test` (lint, types, tests of minutes), `make bench`.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= /usr/bin/python3
VENV ?= .venv
PY := $(VENV)/bin/python
# Ubuntu has bpftool in a package of each kernel.
BPFTOOL := $(if $(findstring ubuntu,$(file </etc/os-release)),linux-tools-generic,bpftool)
APT := clang gcc libc6-dev make cmake ninja-build pkg-config $(BPFTOOL) libbpf-dev libelf-dev zlib1g-dev libnl-3-dev \
       python3-dev python3-venv
APT_TEST := llvm ethtool iproute2 iperf3 curl procps kmod bc systemd dbus man-db zsh fish tmux chromium-headless-shell
C_SOURCES := $(wildcard atfnd/bpf/*/*.[ch] atfnd/bpf/*.cmake atfnd/bpf/CMakeLists.txt)
BENCH_SOURCES := $(wildcard bench/extension/*.c bench/extension/*.h bench/extension/CMakeLists.txt)
C_FORMATTED := $(wildcard atfnd/bpf/*/*.[ch] bench/*.[ch] bench/*/*.[ch] bench/*/*/*.[ch])
NAME ?= all
export CMD ?= uname -a; lscpu
GUEST ?=
HOURS ?= 4
APT_DEB := build-essential debhelper dpkg-dev fakeroot
APT_DISTRIBUTIONS := mmdebstrap
# The licences of the libraries that the wheel brings along, as Debian has them, and the texts that they refer to.
BUNDLED := $(wildcard $(addsuffix /copyright,$(addprefix /usr/share/doc/,libbpf1 libelf1* libnl-3-200))) \
           $(addprefix /usr/share/common-licenses/,GPL-2 GPL-3 LGPL-2.1 LGPL-3)
PREFIX ?= /usr/local
SYSCONFDIR ?= /etc
UNITDIR ?= $(PREFIX)/lib/systemd/system
WHEELS ?= build/wheels
LIB := $(DESTDIR)$(PREFIX)/lib/atfnd
SHARE := $(DESTDIR)$(PREFIX)/share
ZSH := $(DESTDIR)$(or $(ZSHDIR),$(PREFIX)/share/zsh/site-functions)

help: ## what each target does
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

# The files of the source, in a clone or in an unpacked archive of a release.
SOURCES := $(if $(wildcard .git),git ls-files -z,find . \( -path ./build -o -path ./$(VENV) -o -name __pycache__ \) -prune -o -type f -print0)

# Debian packages that are missing. On another system the compilers and libraries have to be there.
define apt
	@mkdir -p build
	@command -v dpkg-query >/dev/null || { echo "no apt here; needed: $(1)"; exit 0; }; \
	missing=""; for p in $(1); do dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then echo "installing:$$missing"; apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends $$missing; fi
endef

# Those of pyproject.toml, by the expression $(1) of its `project`.
define pip
	@$(VENV)/bin/pip install -q --disable-pip-version-check "scikit-build-core>=0.10" \
	  $$($(PYTHON) -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; print(*[repr(d) for d in $(1)])' | tr -d "'")
endef

build/.apt: Makefile
	$(call apt,$(APT))
	@touch $@

build/.apt-test: build/.apt
	$(call apt,$(APT_TEST))
	@touch $@

build/.deps: pyproject.toml build/.apt
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(call pip,p["dependencies"])
	@touch $@

build/.venv: build/.deps build/.apt-test
	$(call pip,p["optional-dependencies"]["dev"])
	@touch $@

build/.ext: build/.deps $(C_SOURCES)
	@$(VENV)/bin/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

build/.release: build/.deps
	$(call pip,p["optional-dependencies"]["release"])
	@touch $@

build/.bench: build/.venv $(C_SOURCES) $(BENCH_SOURCES)
	@cmake -S bench/extension -B build/bench -G Ninja --log-level=WARNING -DCMAKE_BUILD_TYPE=Release \
	  -DPython_EXECUTABLE=$(abspath $(PY)) >/dev/null
	@cmake --build build/bench -- --quiet
	@touch $@

setup: build/.ext build/.venv build/.bench ## install what is needed and build the extensions

run: setup ## demo: a real server under RSS, RFS and atfnd, 2 minutes; ends with build/run.json
	@$(PY) -m bench.demo

test: setup ## lint, types and the quick tests: minutes
	@$(PY) -m tests quick

test-rest: setup ## what `make test-all` runs besides `make test`
	@$(PY) -m tests rest

test-all: setup ## lint, types and every test
	@$(PY) -m tests quick && $(PY) -m tests rest

soak: setup ## faults by chance, random tests: make soak HOURS=4
	@$(PY) -m tests soak --hours $(HOURS)

test-nic: setup ## prove a real NIC: NIC=eth2 make test-nic (docs/internals/testing.md)
	@test -n "$(NIC)" || { echo "name it: NIC=eth2 make test-nic" >&2; exit 2; }
	@NIC=$(NIC) $(PY) -m pytest tests/hardware

test-distributions: kit ## build, install and use it on other distributions: make test-distributions [NAME=debian-13]
	$(call apt,$(APT_DISTRIBUTIONS))
	@$(PY) -m tests.distributions $(filter-out all,$(NAME))

sanitize: setup ## the extension's tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@for each in atfnd/bpf:bpf bench/extension:bench; do \
	  cmake -S $${each%%:*} -B build/sanitize/$${each##*:} -G Ninja -DSANITIZE=ON \
	    -DPython_EXECUTABLE=$(abspath $(PY)) >/dev/null && \
	  cmake --build build/sanitize/$${each##*:} -- --quiet || exit; done
	@LD_PRELOAD=$$(gcc -print-file-name=libasan.so) PYTHONMALLOC=malloc \
	  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 $(PY) -m tests.sanitize $(TESTS)

mutants: setup ## faults made in the code, one by one, that pure tests are to see: make mutants [WORDS="--seed 1 atfnd/move/"]
	@$(PY) -m tests.mutants $(WORDS)

lint: setup ## ruff, mypy --strict and clang-format
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/clang-format --dry-run -Werror $(C_FORMATTED)

format: setup ## write Python and C as `make lint` wants them
	@$(VENV)/bin/ruff format -q .
	@$(VENV)/bin/clang-format -i $(C_FORMATTED)

docs: setup ## write the reference of policy keys in docs/policies.md
	@$(PY) -m docs.reference docs/policies.md

bench: setup ## all benchmarks, or one: make bench NAME=reaction [ARGS="--rounds 2"]
	@$(PY) -m bench $(NAME) $(ARGS)

machine: setup ## count what a request costs on the CPUs of a guest: make machine [ARGS="--server nginx"]
	@$(PY) -m bench machine $(ARGS)

kit: setup wheels build/.release ## build/kit: the benches as a folder that runs on another machine: sudo ./run
	@$(PY) -m bench.kit.packing

guest: setup ## a command in the guest: make guest CMD="nproc" [GUEST="--nic igb:2"]
	@$(PY) -m tests.guest $(GUEST) -- bash -c "$$CMD"

wheels: build/.ext
	@rm -rf $(WHEELS)
	@$(VENV)/bin/pip freeze --disable-pip-version-check --exclude-editable >build/constraints
	@$(VENV)/bin/pip wheel -q --disable-pip-version-check --no-build-isolation -c build/constraints -w $(WHEELS) .

install: wheels ## install below PREFIX (/usr/local) with its Python dependencies, and the systemd unit
	@$(MAKE) --no-print-directory install-tree
	@test -n "$(DESTDIR)" || ! command -v systemd-sysusers >/dev/null || systemd-sysusers atfnd.conf

install-tree: # from the wheels, without a network
	@rm -rf $(LIB)
	@$(VENV)/bin/pip install -q --disable-pip-version-check --root-user-action ignore --no-compile \
	  --no-index --find-links $(WHEELS) --target $(LIB) atfnd
	@rm -rf $(LIB)/bin
	@# By these, rich could colour source code: a seventh of all files, and nothing here does that.
	@find $(LIB)/pygments/lexers -name '*.py' ! -name __init__.py ! -name _mapping.py -delete
	@$(PYTHON) -m compileall -q --invalidation-mode unchecked-hash -s "$(DESTDIR)" -p / $(LIB)
	@for each in sbin/atfnd:atfnd.cli.commands bin/atfnctl:atfnd.ctl; do \
	  install -d $(DESTDIR)$(PREFIX)/$${each%%/*}; \
	  sed 's|@lib@|$(PREFIX)/lib/atfnd|; s|@module@|'$${each#*:}'|' packaging/launcher.in \
	    >$(DESTDIR)$(PREFIX)/$${each%%:*} && chmod 755 $(DESTDIR)$(PREFIX)/$${each%%:*}; done
	@install -d $(DESTDIR)$(UNITDIR) $(DESTDIR)$(PREFIX)/lib/sysusers.d
	@sed 's|/usr/local/|$(PREFIX)/|' atfnd.service >$(DESTDIR)$(UNITDIR)/atfnd.service
	@install -m 644 packaging/atfnd.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/atfnd.conf
	@$(PY) -m docs.manual build/man policies/data-transfer.yaml
	@install -d $(SHARE)/man/man1 $(SHARE)/man/man5 $(SHARE)/man/man8
	@for each in build/man/*; do install -m 644 $$each $(SHARE)/man/man$${each##*.}/; done
	@install -d $(SHARE)/bash-completion/completions $(ZSH) $(SHARE)/fish/vendor_completions.d
	@for each in atfnd atfnctl; do \
	  name() { sed "s|@prog@|$$each|g; s|@PROG@|$${each^^}|g" completions/$$1.in; }; \
	  name bash >$(SHARE)/bash-completion/completions/$$each; \
	  name zsh >$(ZSH)/_$$each; name fish >$(SHARE)/fish/vendor_completions.d/$$each.fish; done
	@for each in README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md docs/*.md docs/internals/*.md docs/recipes/*.md docs/plots/* monitoring/*; do \
	  install -D -m 644 $$each $(SHARE)/doc/atfnd/$$each; done
	@install -d $(DESTDIR)$(SYSCONFDIR)/atfnd/policies $(DESTDIR)$(SYSCONFDIR)/atfnd/policies.d
	@cp -n policies/*.yaml $(DESTDIR)$(SYSCONFDIR)/atfnd/policies/
	@cp -n packaging/atfnd.yaml $(DESTDIR)$(SYSCONFDIR)/atfnd/atfnd.yaml

uninstall: ## stop it, undo what it did, remove what `make install` put there; /etc/atfnd stays
	@test -n "$(DESTDIR)" || ! test -x $(PREFIX)/sbin/atfnd || { \
	  ! command -v systemctl >/dev/null || systemctl disable --now atfnd || true; \
	  $(PREFIX)/sbin/atfnd restore || echo "atfnd: not everything could be put back" >&2; }
	rm -rf $(LIB) $(SHARE)/doc/atfnd $(DESTDIR)$(PREFIX)/sbin/atfnd $(DESTDIR)$(PREFIX)/bin/atfnctl
	rm -f $(DESTDIR)$(UNITDIR)/atfnd.service $(DESTDIR)$(PREFIX)/lib/sysusers.d/atfnd.conf
	rm -f $(SHARE)/man/man?/{atfnd.8,atfnctl.1,atfnd.yaml.5} $(ZSH)/_{atfnd,atfnctl}
	rm -f $(SHARE)/{bash-completion/completions/{atfnd,atfnctl},fish/vendor_completions.d/{atfnd,atfnctl}.fish}

man: build/.ext ## build/man: atfnd(8), atfnctl(1), atfnd.yaml(5)
	@$(PY) -m docs.manual build/man policies/data-transfer.yaml

deb: wheels ## build/deb/atfnd_*.deb
	$(call apt,$(APT_DEB))
	@rm -rf build/deb && mkdir -p build/deb/source
	@$(SOURCES) | xargs -0 cp --parents -t build/deb/source
	@cd build/deb/source && VENV=$(abspath $(VENV)) WHEELS=$(abspath $(WHEELS)) dpkg-buildpackage -b -us -uc
	@rm -rf build/deb/source

dist: build/.release build/.ext ## build/dist: sdist and manylinux wheel, as a package index takes them
	@rm -rf build/dist && mkdir -p build/dist/linux
	@$(PY) -c 'from scikit_build_core.build import build_sdist; build_sdist("build/dist")' >build/dist.log
	@$(VENV)/bin/pip wheel -q --disable-pip-version-check --no-build-isolation --no-deps -w build/dist/linux build/dist/atfnd-*.tar.gz
	@PATH=$(abspath $(VENV))/bin:$$PATH auditwheel show build/dist/linux/*.whl
	@PATH=$(abspath $(VENV))/bin:$$PATH auditwheel repair -w build/dist/bundled build/dist/linux/*.whl
	@$(VENV)/bin/wheel unpack -d build/dist/unpacked build/dist/bundled/*.whl
	@for each in $(BUNDLED); do \
	  install -D -m 644 $$each $$(echo build/dist/unpacked/*/*.dist-info)/licenses/bundled/$$(basename $${each%/copyright}) || exit; done
	@$(VENV)/bin/wheel pack -d build/dist build/dist/unpacked/*
	@rm -r build/dist/{linux,bundled,unpacked}
	@$(VENV)/bin/twine check --strict build/dist/*

lintian: deb ## what Debian's checker says of the package
	@command -v lintian >/dev/null || DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends lintian
	@lintian --fail-on error,warning --suppress-tags bogus-mail-host build/deb/atfnd_*.changes

release: ## write the version everywhere, commit and tag it: make release VERSION=1.0.0rc1
	@$(PYTHON) -m docs.release "$(VERSION)"

clean: ## remove everything built
	rm -rf build bench/extension/_bench.abi3.so $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

.PHONY: help setup sanitize mutants run test test-rest test-all soak test-nic test-distributions lint format docs bench machine kit guest wheels install install-tree man uninstall deb dist lintian release clean
