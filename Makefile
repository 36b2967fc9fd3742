# Everything installs itself into .venv; a second run starts at once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := $(VENV)/.installed


.PHONY: demo test simulate mutate bench lint format check schemas clean

demo: $(RUN)
	@$(BIN)/python -m examples.demo

# Bytecode is written even where the environment says otherwise: each process would compile the tests again.
test: $(RUN)-test
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n auto --maxschedchunk 1

# Crashes at every point, random histories, a hostile market: make simulate SEEDS=10000. JOBS processes side by side.
SEEDS ?= 1000
JOBS ?= 2
simulate: $(RUN)-test
	$(BIN)/python -m tests.simulation.exhaustive --jobs $(JOBS)
	$(BIN)/python -m tests.simulation.seeds --count $(SEEDS) --jobs $(JOBS)
	$(BIN)/python -m tests.simulation.market --count $(SEEDS) --jobs $(JOBS)

# Each line of recovery, journal and ordering taken away once: a test must notice. MUTATE="journal walk" chooses files.
mutate: $(RUN)-test
	$(BIN)/python -m tests.mutation --jobs $(JOBS) $(MUTATE)

# Beside peers, each in an environment of its own under build/; BENCH="startup ssh" chooses.
bench: $(RUN)-test
	@$(BIN)/python -m bench $(BENCH)

lint: $(RUN)-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_layers.py

format: $(RUN)-lint
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

check: lint test

schemas: $(RUN)
	$(BIN)/lium-plan schema manifest > schemas/manifest.schema.json
	$(BIN)/lium-plan schema state > schemas/state.schema.json
	$(BIN)/lium-plan schema plan > schemas/plan.schema.json
	$(BIN)/lium-plan schema show > schemas/show.schema.json
	$(BIN)/lium-plan schema events > schemas/events.schema.json

# A virtual environment needs no more than pip: where the venv module lacks its ensurepip, virtualenv makes it.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "lium-plan needs Python 3.11 or newer: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) 2>/dev/null || \
	  { rm -rf $(VENV); $(PYTHON) -m pip install --quiet --target build/virtualenv virtualenv && \
	    PYTHONPATH=build/virtualenv $(PYTHON) -m virtualenv --quiet $(VENV); }

$(RUN): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --config-settings editable_mode=compat -e .
	@$(BIN)/python -m compileall -q lium_plan
	@touch $@

$(RUN)-test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --config-settings editable_mode=compat -e '.[test]'
	@$(BIN)/python -m compileall -q lium_plan
	@touch $@ $(RUN)

$(RUN)-lint: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --config-settings editable_mode=compat -e '.[test,lint]'
	@$(BIN)/python -m compileall -q lium_plan
	@touch $@ $(RUN)-test $(RUN)

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache
