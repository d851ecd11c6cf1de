# The first run of `make test` or `make study` makes .venv and installs what it needs there.

PYTHON ?= python3
PYTEST_ARGS ?= --numprocesses logical --maxprocesses 8 --dist worksteal
STUDY_ARGS ?= --preset small
COMPARISON_ARGS ?= --preset full

BIN := .venv/bin
INSTALL_FILES := pyproject.toml constraints.txt anyinit/_version.py

.PHONY: test test-slow test-keras-torch test-keras-tensorflow test-versions test-wheel study comparison docs lint format types versions clean

test: .venv/installed-dev
	$(BIN)/pytest $(PYTEST_ARGS)

test-slow: .venv/installed-dev
	$(BIN)/pytest $(PYTEST_ARGS) -m slow

test-keras-torch: .venv/installed-dev
	KERAS_BACKEND=torch $(BIN)/pytest $(PYTEST_ARGS) tests/test_keras_*.py

# In an environment of its own, as TensorFlow takes 2 GB; with keras_hub, which needs it too.
test-keras-tensorflow: .venv-tensorflow/installed
	KERAS_BACKEND=tensorflow .venv-tensorflow/bin/pytest $(PYTEST_ARGS) tests/test_keras_*.py \
		shims/anyinit_keras shims/anyinit_tensorflow

# On every supported Python that is there, and on the oldest PyTorch; VERSIONS="3.12" for some.
test-versions:
	PYTEST_ARGS="$(PYTEST_ARGS)" .ci/test-versions $(VERSIONS)

# The built package in new environments, with and without PyTorch and Keras.
test-wheel:
	PYTHON=$(PYTHON) .ci/test-wheel

study: .venv/installed-study
	$(BIN)/python experiments/tied.py $(STUDY_ARGS)

comparison: .venv/installed-study
	$(BIN)/python experiments/tasks.py $(COMPARISON_ARGS)

# Any warning fails it. The variable silences the theme's note on releases to come.
docs: .venv/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

lint: .venv/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: .venv/installed-dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

types: .venv/installed-dev
	$(BIN)/mypy

versions: .venv/installed-dev
	$(BIN)/python --version
	$(BIN)/pip list --disable-pip-version-check

clean:
	rm -rf .venv .venv-tensorflow .venv-versions build dist site .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One extra each, in one environment; `dev` includes `study`.
.venv/installed-%: .venv/bin/python $(INSTALL_FILES)
	@echo "Installing anyinit-jax[$*] into .venv ..."
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable ".[$*]"
	@touch $@

.venv-tensorflow/installed: .venv/bin/python $(INSTALL_FILES)
	.venv/bin/python -m venv .venv-tensorflow
	@echo "Installing anyinit-jax[keras-hub,test] into .venv-tensorflow ..."
	.venv-tensorflow/bin/pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable ".[keras-hub,test]"
	@touch $@

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "anyinit needs Python 3.11 or newer; name one: make PYTHON=python3.13 ..." >&2; exit 1; }
	$(PYTHON) -m venv .venv

.PRECIOUS: .venv/bin/python .venv/installed-dev .venv/installed-docs .venv/installed-study
