# Every target sets up what it needs first; nothing is done twice. `make help` lists the targets.
.DEFAULT_GOAL := help
.PHONY: help setup setup-package setup-dev setup-clients setup-object-stores run test quick sim suites bench bench-cluster bench-spark bench-archive check format docs clean

PYTHON ?=
ARGS ?=
FOLDERS ?=
QUICK ?=
PYTEST_ARGS ?=
SEEDS ?= 100
FIRST ?= 50000000
SUITES ?= kafka-python librdkafka
export PYTHON PYTEST_ARGS
# Hundreds of processes start from this checkout: each would compile it anew.
unexport PYTHONDONTWRITEBYTECODE

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

setup: setup-dev setup-clients setup-object-stores ## make .venv with everything, and bring kcat, Java, the jars of Kafka and of Spark's connector, the Node clients and object stores for the tests

setup-package:
	@scripts/setup-venv package

setup-dev:
	@scripts/setup-venv dev

setup-clients:
	@scripts/setup-clients

setup-object-stores:
	@scripts/setup-object-stores

run: setup-package ## start a broker; options in ARGS: make run ARGS="--port 9093 --data-dir /tmp/queue"
	@.venv/bin/tailrace serve $(ARGS)

test: setup-dev setup-clients setup-object-stores ## run all tests; FOLDERS="unit interop" chooses, PYTEST_ARGS="-x -k name" is passed on
	@.venv/bin/python -m scripts.testrun $(FOLDERS) $(ARGS)

quick: setup-dev setup-clients setup-object-stores ## run unit tests of what changed and a choice of the rest, in under 3 minutes
	@.venv/bin/python -m scripts.testrun --quick

sim: setup-dev ## run seeds of the simulated cluster; SEEDS=1000 says how many, FIRST=4711 from which on
	@.venv/bin/python scripts/run_sim.py --seeds $(SEEDS) --first $(FIRST) $(ARGS)

suites: setup-dev setup-clients ## run clients' own test suites; SUITES="librdkafka" and ARGS="0012 0045" or ARGS="-k name" choose
	@scripts/setup-suites $(SUITES)
	@.venv/bin/python scripts/run_suites.py $(ARGS) --suites $(SUITES)

bench: setup-package ## measure beside Apache Kafka and other queues, up to 60 minutes; QUICK=1: a part of it, up to 8
	@scripts/setup-bench
	@.venv/bin/python -m bench peers $(if $(filter-out 0,$(QUICK)),--quick) $(ARGS)

bench-cluster: setup-dev ## measure three brokers beside three nodes of Apache Kafka, about 30 minutes; QUICK=1: a fiftieth of the load, once
	@scripts/setup-bench
	@.venv/bin/python -m bench cluster $(if $(filter-out 0,$(QUICK)),--quick) $(ARGS)

bench-spark: setup-dev setup-clients ## measure the data source beside Spark's Kafka connector, about 12 minutes; QUICK=1: a tenth
	@.venv/bin/python -m bench spark $(if $(filter-out 0,$(QUICK)),--quick) $(ARGS)

bench-archive: setup-dev setup-clients ## measure how fast topics are archived, and archives read through the broker, about 20 minutes
	@scripts/setup-bench
	@.venv/bin/python -m bench archive $(if $(filter-out 0,$(QUICK)),--quick) $(ARGS)
	@.venv/bin/python -m bench archive-reads $(if $(filter-out 0,$(QUICK)),--quick) $(ARGS)

check: setup-dev ## lint, formatting, types, the layering rule, and modules that nothing uses
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	.venv/bin/python -m scripts.unused_modules

format: setup-dev ## format the code and fix what the linter can
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

docs: setup-dev ## write the generated pages under docs/ again
	.venv/bin/python -m tailrace.broker.config.docs
	.venv/bin/python -m tailrace.broker.protocol_docs
	.venv/bin/python -m tailrace.broker.monitoring.docs
	.venv/bin/python -m scripts.layer_picture

clean: ## remove everything that was built, installed or cached here
	rm -rf .venv .cache build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests bench -type d -name __pycache__ -prune -exec rm -rf {} +
