# One word each, the same here and in .ci/run.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2
PYTEST := $(BIN)/pytest -n $(WORKERS) --dist worksteal
SCRIPTS = $(wildcard remote_scripts/*.sh)

.PHONY: demo fmt fmt-check lint types arch test faults soak bench check tools clean

# See the product lose an answer and find it again, on a server of its own.
demo: $(VENV)/made-run
	@$(BIN)/sshop demo

# Put every file in the form that fmt-check wants.
fmt: $(VENV)/made-dev
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .
	$(if $(SCRIPTS),$(BIN)/shfmt -ln posix -i 0 -w $(SCRIPTS))

fmt-check: $(VENV)/made-dev
	$(BIN)/ruff format --check .
	$(if $(SCRIPTS),$(BIN)/shfmt -ln posix -i 0 -d $(SCRIPTS))

lint: $(VENV)/made-dev tools
	$(BIN)/ruff check .
	$(if $(SCRIPTS),for script in $(SCRIPTS); do sh -n "$$script" || exit; done)
	@if command -v shellcheck >/dev/null; then \
		set -- $(SCRIPTS); test $$# = 0 || shellcheck --shell=sh "$$@"; \
	elif test -n "$$SSHOP_REQUIRE_TOOLS"; then \
		echo "make: shellcheck is missing and SSHOP_REQUIRE_TOOLS is set" >&2; exit 1; \
	else echo "make: shellcheck is missing, skipped" >&2; fi

types: $(VENV)/made-dev
	$(BIN)/mypy

arch: $(VENV)/made-dev
	$(BIN)/lint-imports

test: $(VENV)/made-dev tools
	$(PYTEST) -m "not faults and not soak and not bench"

# The long enumerations, whole: every cut and every kill.
faults: $(VENV)/made-dev tools
	SSHOP_WHOLE=1 $(PYTEST) -m "not soak and not bench" tests/faults

soak: $(VENV)/made-dev tools
	$(PYTEST) -m soak

# Measured one at a time, or the numbers mean nothing.
bench: $(VENV)/made-dev tools
	$(BIN)/python -m tests.bench

check: fmt-check lint types arch test

# The programs that tests run: installed for root on Debian, named as missing for anyone else.
tools:
	@.ci/tools

$(VENV)/made-run: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "make: $(PYTHON) must be Python 3.11 or newer; say which with PYTHON=…" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || .ci/tools venv
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/made-dev: $(VENV)/made-run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
