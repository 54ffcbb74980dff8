# Everything a fresh machine needs: `make run` and `make test` set up their own environments.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
ENV := OMP_NUM_THREADS=1 MPLBACKEND=Agg

.PHONY: run test check bench figures clean help

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

run: $(VENV)/.ready-run  ## sweep the embedded profile: a table here, the picture in results/
	$(ENV) $(BIN)/ssdsim sweep

test: $(VENV)/.ready-test  ## every test; those that start processes of their own run one after the other
	$(ENV) $(BIN)/python -m pytest -n 2 -m "not serial and not bench"
	$(ENV) $(BIN)/python -m pytest -m "serial and not bench"

check: $(VENV)/.ready-test  ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.ready-test  ## the long statistical checks, then the speed targets (on a quiet machine)
	$(ENV) $(BIN)/python -m pytest -m bench
	for script in benchmarks/*.py; do $(ENV) $(BIN)/python $$script --check || exit 1; done

figures: $(VENV)/.ready-run  ## every figure from embedded or freshly simulated data
	$(ENV) $(BIN)/ssdsim figures --out results/figures

clean:  ## remove the environment and everything that was built
	rm -rf $(VENV) build dist results .mypy_cache .ruff_cache .pytest_cache .hypothesis

# `make run` needs no torch; `make test` adds the extras that the tests exercise for real.
$(VENV)/.ready-run: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

$(VENV)/.ready-test: $(VENV)/.ready-run
	$(PIP) --editable ".[executor,smollm2,ray,dask,dev]"
	touch $@
