# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test check app docs clean

demo: $(INSTALLED)
	$(BIN)/mixlab demo

# One thread for each process: faster than threads that wait for each other. Python keeps what it compiled, since many
# tests start mixlab anew.
test: $(INSTALLED)
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -p tests.forked_workers

app: $(INSTALLED)
	$(BIN)/mixlab app --open

docs: $(INSTALLED)
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet -d build/doctrees docs build/site

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_architecture.py

# Redone when what is to be installed changes, and only then.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "mixlab needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[all,dev,docs]'
	@touch $@

clean:
	rm -rf $(VENV) demo demo-quick build *.egg-info
