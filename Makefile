# Every target first sets up what it needs, unless that is there already. `make help` lists the targets.
.DEFAULT_GOAL := help
.PHONY: help setup setup-package setup-dev setup-clients setup-object-stores run test quick sim suites bench bench-cluster bench-spark bench-archive check format docs clean

PYTHON ?=
PYSPARK ?=
ARGS ?=
FOLDERS ?=
QUICK ?=
PYTEST_ARGS ?=
SEEDS ?= 100
FIRST ?= 50000000
SUITES ?= kafka-python librdkafka
export PYTHON PYSPARK PYTEST_ARGS
# Hundreds of processes start from this checkout: without bytecode files, each would compile it again.
unexport PYTHONDONTWRITEBYTECODE

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

setup: setup-dev setup-clients setup-object-stores ## create .venv and install everything for the tests: kcat, Java, jars of Kafka and of Spark's connector, Node clients, object stores

setup-package:
	@scripts/setup-venv package

setup-dev:
	@scripts/setup-venv dev

setup-clients:
	@scripts/setup-clients

setup-object-stores:
	@scripts/setup-object-stores

run: setup-package ## start a broker; pass options in ARGS: make run ARGS="--port 9093 --data-dir /tmp/queue"
	@.venv/bin/tailrace serve $(ARGS)

test: setup-dev setup-clients setup-object-stores ## run all tests; FOLDERS="unit interop" selects folders, PYTEST_ARGS="-x -k name" goes to pytest
	@.venv/bin/python -m scripts.testrun $(FOLDERS) $(ARGS)

quick: setup-dev setup-clients setup-object-stores ## run the unit tests of changed files and a selection of the others, in under 3 minutes
	@.venv/bin/python -m scripts.testrun --quick

sim: setup-dev ## run the simulated cluster with 100 seeds; SEEDS=1000 sets the number, FIRST=4711 the first seed
	@.venv/bin/python scripts/run_sim.py --seeds $(SEEDS) --first $(FIRST) $(ARGS)

suites: setup-dev setup-clients ## run the clients' own test suites; select with SUITES="librdkafka" and ARGS="0012 0045" or ARGS="-k name"
	@scripts/setup-suites $(SUITES)
	@.venv/bin/python scripts/run_suites.py $(ARGS) --suites $(SUITES)

bench: setup-package ## compare with Apache Kafka and other queues in up to 60 minutes; QUICK=1: a subset in up to 8
	@scripts/setup-bench
	@.venv/bin/python -m bench peers $(if $(filter-out 0,$(QUICK)),--quick) $(ARGS)

bench-cluster: setup-dev ## compare three brokers with three nodes of Apache Kafka in about 30 minutes; QUICK=1: with a fiftieth of the load
	@scripts/setup-bench
	@.venv/bin/python -m bench cluster $(if $(filter-out 0,$(QUICK)),--quick) $(ARGS)

bench-spark: setup-dev setup-clients ## compare the data source with Spark's Kafka connector in about 12 minutes; QUICK=1: with a tenth of the rows
	@.venv/bin/python -m bench spark $(if $(filter-out 0,$(QUICK)),--quick) $(ARGS)

bench-archive: setup-dev setup-clients ## measure the speed of archiving, and of reading archives through the broker, in about 20 minutes
	@scripts/setup-bench
	@.venv/bin/python -m bench archive $(if $(filter-out 0,$(QUICK)),--quick) $(ARGS)
	@.venv/bin/python -m bench archive-reads $(if $(filter-out 0,$(QUICK)),--quick) $(ARGS)

check: setup-dev ## check lint, formatting, types and layers, and find unused modules
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	.venv/bin/python -m scripts.unused_modules

format: setup-dev ## format the code and fix what the linter can
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

docs: setup-dev ## regenerate the generated pages under docs/
	.venv/bin/python -m tailrace.broker.config.docs
	.venv/bin/python -m tailrace.broker.protocol_docs
	.venv/bin/python -m tailrace.broker.monitoring.docs
	.venv/bin/python -m scripts.layer_picture

clean: ## remove everything that was built, installed or cached in this checkout
	rm -rf .venv .cache build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests bench -type d -name __pycache__ -prune -exec rm -rf {} +
