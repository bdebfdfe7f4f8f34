# One command per chore. `make run` and `make test` work on a fresh machine: they set up .venv and find or install Java.
# What .venv is made of; PYTHON=… says otherwise. (Deferred: asked when there is no .venv.)
PYTHON ?= $(shell .ci/python)
STORAGE ?= file
SEEDS ?= 500
MINUTES ?= 10
BURN ?= 0
KILLS ?= 0
VENV := $(if $(NEWEST),.venv-newest,.venv)
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# What was the newest a day ago may no longer be.
ifdef NEWEST
$(shell find $(STAMP) -mtime +0 -delete 2>/dev/null)
endif
# After make check has passed, as in .ci/run: the unit tests that it left out, and those that draw more examples here.
UNCHECKED := $(if $(CHECKED),-m 'spark or slow or hypothesis or draws')
UNIT_TESTS := tests/test_house.py tests/test_spark_matrix.py tests/test_steps.py tests/test_checkout.py tests/test_published.py tests/house tests/test_documents.py tests/test_options_table.py tests/test_metrics_table.py tests/test_behaviours.py tests/test_examples.py tests/test_fraud.py tests/test_bids.py tests/security tests/state tests/coordinator tests/barrier_runtime tests/benchmarks tests/mutants tests/stored tests/oracle tests/field/local tests/hosts tests/soak
# Bytecode stays beside the sources, everything else that is made goes below build/.
# Written it has to be, whatever the caller's environment says: hundreds of tests start programs of ours, which would compile it all.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help lock run matrix pictures test docs wheel style lint types check quick format tables bench sim oracle sim-canaries mutants chaos hosts soak java jdk servers links clean

help:
	@echo "make run [STORAGE=file|s3]  the main job, with a killed slot and a killed coordinator, checked against Spark SQL"
	@echo "make run EXAMPLE=name       kafka_to_kafka, kafka_to_postgres, rabbitmq_to_delta, orders_to_iceberg, fraud or bids, on real servers, with kills; or grow, without"
	@echo "make test [CHECKED=1]       every test; all steps run also when one fails (CHECKED: but those that make check has just run)"
	@echo "make matrix                 the main job's short form, and Spark's tables, on PySpark 3.5 to 4.3 with Java 17 and 21 (PAIRS='4.0/21 …')"
	@echo "make check                  style, types, house rules, unit tests but the slow ones (a minute and a half on two idle cores, no Java)"
	@echo "make style                  style and types alone"
	@echo "make format                 let ruff put the style right"
	@echo "make tables                 what is generated anew: docs/behaviours, options, metrics, connectors, pictures of windows and joins"
	@echo "make docs                   the site of docs/ and the reference, with strict links: build/site"
	@echo "make lock                   the newest versions of all dependencies, with hashes: .ci/locked.txt (make check NEWEST=1, make test NEWEST=1 try them, without it)"
	@echo "make wheel                  build/dist, tried in an empty environment: README's program, new, demo (PYTHONS='python3.10 …'; ALL=1: 3.10 to 3.14)"
	@echo "make bench [QUICK=1|ALL=1]  engines side by side: build/bench/report.html (1.5 hours; ROUNDS=1: half an hour; QUICK: 5 minutes; ALL: 8 hours)"
	@echo "make sim [SEEDS=n]          the simulation over n seeds; SEED=s replays one (SHRINK=1: makes it smaller); CANARY=name"
	@echo "make sim-canaries           every planted bug is found by the simulation"
	@echo "make oracle [SEEDS=n]       random windows and joins, with crashes, against sorting, DuckDB and pandas; every restore; 40 times the examples of make test"
	@echo "make mutants [WIDE=1]       every planted change of the product is noticed by a test: build/mutants.md"
	@echo "make chaos [MINUTES=n] [KILLS=n] [SEED=s] [BURN=n]  kill, stall and starve a job on a local cluster, then judge its output"
	@echo "make hosts [LONG=1] [DAEMONS=2] [IPV6=1] [SPARK=1] [PREFLIGHT=1]  cut, slow and one-way links of hosts made of network namespaces, then judge the output; LONG: an hour; SPARK: real Spark and Kafka, kills; PREFLIGHT: six planted faults"
	@echo "make soak HOURS=n [RATE=rows/s] [SEED=s]  windows, joins and Kafka under load, a kill every minute; slopes of all resources"
	@echo "make pictures               pictures of the coordinator's page for docs/, of a run with kills"
	@echo "make clean                  remove what runs and tests left (not .venv)"

$(STAMP): pyproject.toml .ci/locked.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "Python 3.10 or newer is needed, $(PYTHON) is older: make PYTHON=python3.11 …"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
		{ echo "cannot make a virtual environment: on Debian or Ubuntu, apt-get install python3-venv"; exit 1; }
	@.ci/install $(VENV)
	@touch $@

lock: $(STAMP)
	@.ci/lock

java:
	@.ci/java

jdk:
	@.ci/java jdk

servers:
	@.ci/servers

links:
	@.ci/hosts

run: $(STAMP) java $(if $(filter-out grow,$(EXAMPLE)),servers)
	$(BIN)/python -m $(if $(EXAMPLE),examples.run_example $(EXAMPLE),examples.run_main --storage $(STORAGE))

matrix: $(STAMP) java
	$(BIN)/python -m tests.spark_matrix $(PAIRS)

# Tests wait for a third of their time, those of servers for half of it: four at a time on two cores. Those in a browser come first in
# their step, so that one worker has nearly all of them: a browser and its job are a worker's, and the other workers fill the cores.
test: $(STAMP) jdk servers links
	@$(BIN)/python -m tests.spark_jvm
	@$(BIN)/python -m tests.kafka_jvm
	@$(BIN)/python -m tests.compiled $(UNIT_TESTS)
	@.ci/steps \
		"$(BIN)/python -m pytest -q -n 3 --dist worksteal --hypothesis-profile test $(UNCHECKED) $(UNIT_TESTS)" \
		"$(BIN)/python -m pytest -q -n 2 tests/simulation" \
		"$(BIN)/python tests/simulation/simulate.py --first 20 --seeds 100" \
		"$(BIN)/python -m tests.spark_matrix --one" \
		"$(BIN)/python -m pytest -q -n 4 --dist worksteal tests/browser tests/ends tests/field/servers" \
		"$(BIN)/python -m tests.hosts.run --short" \
		"$(BIN)/python -m pytest -n 4 --dist worksteal --durations 15 --durations-min 10 tests/integration"

style: lint types

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

# Types are checked by one process, beside the tests: without its cache, as in a fresh clone, that takes most of a minute.
check: lint
	@$(MAKE) --no-print-directory --jobs 2 --keep-going types quick

quick: $(STAMP)
	@$(BIN)/python -m tests.compiled $(UNIT_TESTS)
	$(BIN)/python -m pytest -q -n 3 --dist worksteal -m "not spark and not slow" --hypothesis-profile check $(UNIT_TESTS)

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

tables: $(STAMP)
	$(BIN)/python -m tests.connectors_table
	$(BIN)/python tests/options_table.py
	$(BIN)/python tests/metrics_table.py
	$(BIN)/python tests/behaviours_table.py
	$(BIN)/python -m tests.window_pictures

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=. $(BIN)/python -m mkdocs build --quiet

wheel:
	$(if $(ALL),.ci/pythons,.ci/wheel $(PYTHONS))

bench: $(STAMP) jdk servers
	$(BIN)/python -m benchmarks $(if $(QUICK),all --quick,$(if $(ALL),all,table)) $(if $(ROUNDS),--rounds $(ROUNDS))

pictures: $(STAMP) java servers
	$(BIN)/python -m examples.page_pictures

sim: $(STAMP)
	$(BIN)/python tests/simulation/simulate.py --seeds $(SEEDS) $(if $(SEED),--seed $(SEED)) \
		$(if $(CANARY),--canary $(CANARY)) $(if $(SHRINK),--shrink)

oracle: $(STAMP)
	$(BIN)/python -m tests.oracle.run --seeds $(if $(filter 500,$(SEEDS)),1000,$(SEEDS))
	$(BIN)/python -m tests.oracle.test_restore_matrix
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "hypothesis or draws" --hypothesis-profile oracle $(UNIT_TESTS)

sim-canaries: $(STAMP)
	$(BIN)/python tests/simulation/simulate.py --canaries

mutants: $(STAMP)
	$(BIN)/python -m tests.mutants.run $(if $(WIDE),--wide)

chaos: $(STAMP) java
	$(BIN)/python -m tests.integration.chaos.run --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) --burn $(BURN) --kills $(KILLS)

hosts: $(STAMP) links $(if $(SPARK),java servers)
	$(BIN)/python -m $(if $(PREFLIGHT),tests.hosts.planted,tests.hosts.run) $(if $(SPARK),--spark) $(if $(LONG),--seconds 5 60 300) $(if $(DAEMONS),--daemons $(DAEMONS)) $(if $(IPV6),--ipv6)

soak: $(STAMP) java servers
	SOAK=1 $(BIN)/python -m tests.soak.run $(if $(HOURS),--hours $(HOURS)) $(if $(RATE),--rate $(RATE)) $(if $(SEED),--seed $(SEED))

clean:
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse metastore_db derby.log
