# What a laptop runs and what CI runs are the same commands.
VENV ?= .venv
PY = $(VENV)/bin/python

.PHONY: setup demo check test slow
setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	python3.11 -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt torch numpy
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: setup
	$(VENV)/bin/draftwood compare "Once upon a time" --methods autoregressive,speculative,mcsd,lookup

check: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

test: check
	$(PY) -m pytest -n 2

slow: setup
	$(PY) -m pytest -n 2 -m slow
