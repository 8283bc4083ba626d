PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# How many test processes run side by side; each has a Spark session and servers of its own.
JOBS ?= 3

.PHONY: help demo test lint types tests soak chaos bench report format lock clean java

help:  ## List the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

java:
	@tools/check-java.sh

$(VENV)/.ready: pyproject.toml constraints.txt
	@echo "Setting up $(VENV) …"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(VENV)/.ready  ## Run the main job end to end on generated data
	@$(BIN)/strandline demo --fresh

test: lint types tests  ## Lint, check types, run the tests

lint: java $(VENV)/.ready
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: java $(VENV)/.ready
	@$(BIN)/mypy

tests: java $(VENV)/.ready
	@$(BIN)/pytest -m 'not soak and not chaos' -n $(JOBS) --dist loadfile $(ARGS)

soak: java $(VENV)/.ready  ## Run the long tests
	@$(BIN)/pytest -m soak $(ARGS)

chaos: java $(VENV)/.ready  ## Kill senders and receivers hundreds of times while someone writes
	@$(BIN)/pytest -m chaos $(ARGS)

bench: java $(VENV)/.ready  ## Run a benchmark: make bench NAME=upsert (all without NAME)
	@if [ -n "$(NAME)" ]; then $(BIN)/python bench/$(NAME).py $(ARGS); \
	else for f in upsert merge_read compact export forward mirror spark backfill; do $(BIN)/python bench/$$f.py $(ARGS) || exit 1; done; fi

report: $(VENV)/.ready  ## Write docs/benchmarks.md from the last benchmark runs
	@$(BIN)/python bench/report.py

format: $(VENV)/.ready  ## Format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

lock: $(VENV)/.ready  ## Write constraints.txt from what is installed
	@$(BIN)/pip freeze --exclude-editable > constraints.txt

clean:  ## Remove what make made
	rm -rf $(VENV) .venv-peers .mypy_cache .ruff_cache .pytest_cache .hypothesis demo-lake demo-lake-mirror
