# `make demo`, `make test` and `make bench` work in a fresh clone: all they need is Python 3.11 or newer.
PYTHON ?= python3
BIN := .venv/bin
# The folder is in the stamp's name: a moved or copied checkout installs itself again.
STAMP := .venv/installed-$(shell pwd | cksum | cut -d' ' -f1)

.PHONY: demo test test-all browser lint types docs docs-serve bench bench-peers verify-exports format clean
.DELETE_ON_ERROR:

demo: $(STAMP)
	$(BIN)/spikecal demo

test: browser lint types $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto  # small tensors: one process per core, not one thread per core

# Also the tests that take minutes: installing the package into empty environments, and the slow commands of pages.
test-all: test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow

# The tests of the report drive a real browser.
BROWSER := chromium chromium-driver
browser:
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get install -y $(BROWSER) || { apt-get update && apt-get install -y $(BROWSER); }; \
	else \
		echo "the report's tests need chromium and chromedriver: apt-get install -y $(BROWSER)" >&2; exit 1; \
	fi

lint: $(STAMP)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

types: $(STAMP)
	$(BIN)/python -m mypy

# The documentation site, in site/. Warnings are errors, such as dead links and pages outside the navigation. Tests build it, too.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs
docs: $(STAMP)
	$(MKDOCS) build --strict --quiet

docs-serve: $(STAMP)
	$(MKDOCS) serve

bench: $(STAMP)
	$(BIN)/python bench/convert.py

# spikecal compared with SpikingJelly, sinabs and a plain loop. sinabs is installed without its dependencies: it requires an
# older nir than SpikingJelly, and no NIR file is written here.
PEERS := .venv-peers
bench-peers:
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		pbr --editable '.[fast,nir,plots,spikingjelly]'
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps sinabs==3.1.3
	$(PEERS)/bin/python bench/peers

# Exported networks in other simulators. sinabs and SpikingJelly require different versions of nir, so each has its own
# environment. A killed run resumes from .venv-sinabs/work, which is deleted at the end.
SINABS := .venv-sinabs
verify-exports: $(STAMP)
	$(PYTHON) -m venv $(SINABS)
	$(SINABS)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 sinabs==3.1.3 --editable '.[nir]'
	$(BIN)/python bench/exports.py $(SINABS)/work
	$(SINABS)/bin/python bench/exports.py $(SINABS)/work
	rm -rf $(SINABS)/work

format: $(STAMP)
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("spikecal needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	rm -f .venv/installed-*
	touch '$@'

clean:
	rm -rf .venv .venv-peers .venv-sinabs build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
