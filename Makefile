# make install   .venv from requirements.lock
# make serve     the default deployment; CONFIG=deploy/gpu.yaml for another, ARGS="--port 9000" for launcher flags
# make test      all that decides: static checks, unit, kernel and integration tests
# make test-all  the same and the exhaustive tests
# make lint      the static checks alone

PYTHON ?= python3
CONFIG ?= deploy/app.yaml
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest -q
QUICK := -m "not exhaustive"
PARALLEL := -n 2 --dist loadfile

.PHONY: install serve test test-all lint unit kernels integration clean

install: $(INSTALLED)

$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; name it with: make PYTHON=/path/to/python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation -e .
	$(BIN)/python -m engine.precompile
	@touch $@

serve: install
	@exec $(BIN)/python -m serve_app $(CONFIG) $(ARGS)

# $(1): stage, $(2): its budget in seconds on two cores
define stage
	@begun=$$(date +%s); $(MAKE) --no-print-directory $(1) && \
	  echo "== $(1): $$(( $$(date +%s) - begun )) s of $(2) s"
endef

test: install
	$(call stage,lint,80)
	$(call stage,unit,100)
	$(call stage,kernels,180)
	$(call stage,integration,360)

test-all:
	@$(MAKE) --no-print-directory test QUICK=

lint: install
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(PYTEST) tests/test_import_rules.py

unit: install
	$(PYTEST) $(QUICK) $(PARALLEL) tests --ignore=tests/kernels --ignore=tests/integration --ignore=tests/test_import_rules.py

kernels: install
	$(PYTEST) $(QUICK) $(PARALLEL) tests/kernels

integration: install
	$(PYTEST) $(QUICK) tests/integration --durations=12

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
