SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
KERNELS := $(wildcard $(addprefix src/pentalog/kernels/compiled/,*.pyx *.pxd *.h))
# More than there are cores on a small machine: much of the time tests wait.
PARALLEL ?= 4
FRAMES ?= 1000000
SEEDS ?= 20000
# Python that may keep no compiled modules compiles them anew in each of hundreds of processes.
unexport PYTHONDONTWRITEBYTECODE
# Wheels only, but for two that are published as source: pyspark (Python and jars) and msgpack 1.0.4,
# which the Fluvio client pins.
WHEELS := --only-binary :all: --no-binary pyspark --no-binary msgpack
PROGRESS := awk '/^Collecting/ { printf "  package %d of at most $(shell grep -c == requirements/test.txt)\r", ++n; \
	fflush() } /^Installing collected/ { print "  unpacking them            " }'
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	$(WHEELS) --no-annotate --no-header --upgrade \
	$(addprefix --index-url ,$(shell $(BIN)/pip config get global.index-url 2>/dev/null))

.DEFAULT_GOAL := help
.PHONY: help install demo test test-cluster test-sanitized check bench fuzz simulate torture lock clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## make the virtual environment and install pentalog in it, kernels compiled

demo: $(STAMP) ## a story of a minute: five doors, a kill -9, a table (KEEP=1: stay up afterwards)
	$(BIN)/python examples/demo.py $(if $(KEEP),--keep)

test: $(STAMP) ## run the whole test suite
	$(BIN)/pytest -q -m alone $(shell grep -rl --include='test_*.py' pytest.mark.alone tests)
	scratch=$$($(BIN)/python -m tests.support.scratch) && trap "rm -rf $$scratch" EXIT && \
		TMPDIR=$$scratch SPARK_LOCAL_DIRS=$$scratch $(BIN)/pytest -n $(PARALLEL) --dist loadfile \
		--no-loadscope-reorder --max-worker-restart 0 -m "not alone and not trio"

test-cluster: $(STAMP) ## three Apache Kafka nodes and two gateways, killed in turn under load
	$(BIN)/pytest -q -s -m trio tests/cluster

test-sanitized: $(STAMP) ## tests that call kernels, on kernels built with gcc's sanitizers
	$(BIN)/python -m tests.sanitized

check: $(STAMP) ## lint, format, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP) ## measure pentalog beside Apache Kafka on this machine
	$(BIN)/python benchmarks/end_to_end.py
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/rustlog.py
	$(BIN)/python benchmarks/blipmq.py
	$(BIN)/python benchmarks/cursus_door.py
	$(BIN)/python benchmarks/fluvio_door.py
	$(BIN)/python benchmarks/tables.py
	$(BIN)/python benchmarks/search.py
	$(BIN)/python benchmarks/security.py
	$(BIN)/python benchmarks/gateway.py

fuzz: $(STAMP) ## feed damaged bytes to the kernels and to every door (FRAMES=1000000)
	$(BIN)/python -m tests.fuzz.kernels.mutations --count $(FRAMES)
	$(BIN)/python -m tests.fuzz.kernels.sanitizer --count $(FRAMES)
	for door in kafka rustlog blipmq cursus fluvio; do \
		$(BIN)/python -m tests.fuzz.doors $$door --frames $(FRAMES) || exit 1; done

simulate: $(STAMP) ## run the broker on a simulated disk, clock and network (SEEDS=20000)
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)

torture: $(STAMP) ## kill brokers for a long time and look for losses
	PENTALOG_TORTURE=1 $(BIN)/pytest tests/crash tests/tables/test_table_kills.py --timeout 7200
	PENTALOG_TORTURE=1 $(BIN)/pytest tests/tables/test_table_catalogs.py tests/tables/test_five_doors.py --timeout 7200
	PENTALOG_TORTURE=1 $(BIN)/pytest tests/tables/test_table_yarn.py --timeout 7200
	PENTALOG_TORTURE=1 $(BIN)/pytest tests/tables/test_table_jars.py tests/tables/test_table_verbs.py --timeout 7200
	$(BIN)/pip install --quiet --no-deps --target build/spark-4.2 'pyspark==4.2.*'
	PENTALOG_TORTURE=1 PYTHONPATH=build/spark-4.2 $(BIN)/pytest tests/tables/test_table_jars.py tests/tables/test_table_verbs.py --timeout 7200
	PENTALOG_TORTURE=1 $(BIN)/pytest tests/hostile --timeout 7200
	PENTALOG_CYCLES=100 $(BIN)/pytest tests/conformance/test_fluvio_kill.py --timeout 7200
	$(BIN)/python -m tests.history --runs 200
	$(BIN)/pentalog torture --rounds 300

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
	@echo "Setting up, once: a few minutes, most of them for Spark"
	@$(BIN)/pip install --disable-pip-version-check $(WHEELS) --require-hashes \
		-r requirements/test.txt | $(PROGRESS)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
