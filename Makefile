PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
KERNELS := $(wildcard $(addprefix src/pentalog/kernels/compiled/,*.pyx *.pxd *.h))
PARALLEL ?= 2
FRAMES ?= 1000000
# Wheels only, but for two that are published as source: pyspark (Python and jars) and msgpack 1.0.4,
# which the Fluvio client pins.
WHEELS := --only-binary :all: --no-binary pyspark --no-binary msgpack
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	$(WHEELS) --no-annotate --no-header --upgrade \
	$(addprefix --index-url ,$(shell $(BIN)/pip config get global.index-url 2>/dev/null))

.DEFAULT_GOAL := help
.PHONY: help install demo test check bench fuzz torture lock clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## make the virtual environment and install pentalog in it, kernels compiled

demo: $(STAMP) ## start a broker, write, read, kill it, restart it: a story of a minute
	$(BIN)/python examples/demo.py

test: $(STAMP) ## run the whole test suite
	$(BIN)/pytest -q -m alone
	$(BIN)/pytest -n $(PARALLEL) --dist loadfile -m "not alone"

check: $(STAMP) ## lint, format, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP) ## measure pentalog beside Apache Kafka on this machine
	$(BIN)/python benchmarks/end_to_end.py
	$(BIN)/python benchmarks/rustlog.py
	$(BIN)/python benchmarks/blipmq.py
	$(BIN)/python benchmarks/cursus_door.py
	$(BIN)/python benchmarks/fluvio_door.py
	$(BIN)/python benchmarks/tables.py
	$(BIN)/python benchmarks/security.py

fuzz: $(STAMP) ## feed damaged bytes to the kernels and to every door (FRAMES=1000000)
	$(BIN)/python -m tests.fuzz.kernels.mutations --count $(FRAMES)
	$(BIN)/python -m tests.fuzz.kernels.sanitizer --count $(FRAMES)
	$(BIN)/python tests/fuzz/kafka/run.py --frames $(FRAMES)
	for door in rustlog blipmq cursus fluvio; do \
		$(BIN)/python -m tests.fuzz.$$door.run --frames $(FRAMES) || exit 1; done

torture: $(STAMP) ## kill brokers for a long time and look for losses
	PENTALOG_TORTURE=1 $(BIN)/pytest tests/crash tests/tables/test_table_kills.py --timeout 7200
	PENTALOG_CYCLES=100 $(BIN)/pytest tests/conformance/test_fluvio_kill.py --timeout 7200
	$(BIN)/python -m tests.history --runs 200

lock: $(STAMP) ## renew the hash-locked requirements from pyproject.toml
	$(BIN)/pip install --quiet uv
	$(COMPILE) pyproject.toml -o requirements/run.txt
	$(COMPILE) pyproject.toml --extra test requirements/build.in -o requirements/test.txt

clean: ## remove everything that was built, the virtual environment included
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -rf .import_linter_cache
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
	find src -name '*.so' -delete

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The kernels are compiled in place, so a changed kernel means a new installation.
$(STAMP): requirements/test.txt pyproject.toml $(wildcard setup.py) $(KERNELS) | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check $(WHEELS) --require-hashes \
		-r requirements/test.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
