# All targets work from a clean checkout; `make` lists them.
#
# The set-up (virtual environment, pinned dependencies) is done when it is needed and remembered by
# a stamp; nothing is installed outside of .venv. ARGS are passed on: make run ARGS="--nodes 5".

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CLASSES := $(VENV)/.prepared
# The simulator's worlds; what is of the data plane and of clients, and the fuzzing, which waits a lot;
# and the rest: two processes, two, and one have about the same work. The worlds need processors and
# nothing else: `make test` has them LATER, beside the integration tests, which wait, and after them
# what `make quick` leaves out. The integration tests come first where both could run: a broker that
# has to wait for a processor is taken for one that is gone.
PLANE := $(addprefix tests/unit/,fuzz indexer_sim projector_sim language cli client embedded)
LATER :=
ARGS ?=
SEEDS ?= 1000
ROUNDS ?= 10
JOBS ?= 2
FUZZ_SECONDS ?= 20

# Compiled modules, and tests as pytest rewrites them, are kept for the next process.
unexport PYTHONDONTWRITEBYTECODE

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help run test quick bench simulate chaos mutants docker-test setup java schemas lock format clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: java $(STAMP) ## Run a whole cluster in the foreground; Ctrl-C stops it (ARGS="--nodes 5")
	@exec $(BIN)/indexctl run $(ARGS)

test: java $(CLASSES) quick ## Everything: the quick checks, then tests with a real broker (JOBS=2; ARGS for pytest)
	@echo "integration tests, in $(JOBS) processes, and beside them worlds and the slower unit tests"
	@set +e; out=$$(mktemp); beside=; trap 'exit 130' INT; \
	trap 'kill $$beside 2> /dev/null; rm -f "$$out"' EXIT; \
	nice -n 5 $(BIN)/pytest -q -p no:cacheprovider \
	    -m "worlds or thorough or fuzz" tests/simulation tests/unit > "$$out" 2>&1 & beside=$$!; \
	$(BIN)/pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations 15 \
	    --ignore tests/unit --ignore tests/simulation $(ARGS); tests=$$?; \
	wait $$beside; failed=$$?; beside=; \
	if [ $$failed = 0 ]; then tail -n 2 "$$out"; else echo "--- beside them failed:"; cat "$$out"; fi; \
	exit $$(( tests || failed ))

test: LATER := yes
test: export SIMULATION_SEEDS ?= 100
quick: $(STAMP) ## Without a broker: lint, types, import rules, unit tests, simulator
	@echo "lint, format, types, imports, unit tests, simulator"
	@set +e; out=$$(mktemp -d); trap 'rm -rf "$$out"' EXIT; \
	export SIMULATION_SEEDS=$${SIMULATION_SEEDS:-80}; \
	export HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-quick}; \
	$(BIN)/mypy > "$$out/mypy" 2>&1 & types=$$!; \
	$(if $(LATER),true,$(BIN)/pytest -q -n 2 --dist loadfile -p no:cacheprovider -m worlds \
	    tests/simulation) \
	    > "$$out/simulation" 2>&1 & simulation=$$!; \
	$(BIN)/pytest -q -n 2 --dist loadfile -p no:cacheprovider $(PLANE) \
	    > "$$out/plane" 2>&1 & plane=$$!; \
	{ $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports; } \
	    > "$$out/lint" 2>&1 & lint=$$!; \
	$(BIN)/pytest -q -m "not worlds" tests/unit tests/simulation $(addprefix --ignore=,$(PLANE)); \
	tests=$$?; \
	wait $$lint; lint=$$?; \
	wait $$types; types=$$?; \
	wait $$simulation; simulation=$$?; \
	wait $$plane; plane=$$?; \
	for one in lint:$$lint mypy:$$types simulation:$$simulation plane:$$plane; do \
	    [ "$${one#*:}" = 0 ] || { echo "--- $${one%:*} failed:"; cat "$$out/$${one%:*}"; }; done; \
	for one in simulation plane; do [ "$${!one}" != 0 ] || tail -n 1 "$$out/$$one"; done; \
	exit $$(( lint || types || tests || simulation || plane ))

bench: java $(CLASSES) ## Run the benchmarks on this machine
	@exec $(BIN)/python -m benchmarks $(ARGS)

simulate: $(STAMP) ## Run the simulator over many seeds (SEEDS=1000)
	@exec $(BIN)/python -m tests.simulation --seeds $(SEEDS) $(ARGS)

chaos: java $(CLASSES) ## Inject faults into a real cluster, and fuzz (ROUNDS=10 FUZZ_SECONDS=20; ARGS="--brokers 3")
	@$(BIN)/python -m tests.faults --rounds $(ROUNDS) $(ARGS)
	@MATRIX=1 $(BIN)/pytest -q -m matrix tests/integration tests/faults
	@HYPOTHESIS_PROFILE=exhaustive $(BIN)/pytest -q -n $(JOBS) -m "not fuzz" tests/unit
	@FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/pytest -q -n $(JOBS) -m fuzz tests/unit
	@ATTACK_S=$(FUZZ_SECONDS) $(BIN)/pytest -q tests/integration/test_hostile_requests.py

mutants: java $(CLASSES) ## Plant bugs one by one: a test must find each (ARGS="NAME")
	@exec $(BIN)/python -m tests.mutants $(ARGS)

docker-test: $(STAMP) ## Build the image, and test the compose project on a Docker engine
	@DOCKER_TEST=1 $(BIN)/pytest -q -s -p no:cacheprovider tests/docker $(ARGS)

setup: $(STAMP) ## Make .venv with the pinned dependencies

format: $(STAMP) ## Format the code, and apply the linter's fixes
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

lock: $(STAMP) ## Update requirements.lock from pyproject.toml
	@$(BIN)/python -m pip install --quiet uv
	@UV_CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/uv pip compile --quiet --universal \
	    --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	    --all-extras pyproject.toml -o requirements.lock
	@echo "requirements.lock written"

schemas: $(STAMP) ## Release the current version of every changed schema
	@$(BIN)/python -m schemas.release

clean: ## Remove .venv and caches; keeps .indexctl (run `indexctl reset` before)
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@rm -rf .import_linter_cache *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The lock is newer than the stamp: install again, into a new environment if there is none. One in
# which an installation was interrupted is made anew: pip cannot mend packages that are there in part.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "error: $(PYTHON) is not Python 3.11 or newer:" \
	    "install one, and name it with make PYTHON=python3.12" >&2; exit 1; }
	@{ [ ! -e $(VENV)/.installing ] && $(BIN)/python -m pip --version > /dev/null 2>&1; } || { \
	    echo "making the virtual environment in $(VENV)"; \
	    $(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); echo "error: $(PYTHON) -m venv failed:" \
	    "install its venv module (Debian: apt install python3-venv)" >&2; exit 1; }; }
	@echo "installing the dependencies (about a minute the first time)"
	@touch $(VENV)/.installing
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	    --require-hashes -r requirements.lock
	@echo "installing the project"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	    --no-deps --no-build-isolation -e .
	@mv $(VENV)/.installing $@

# JVMs start in half the time with their classes in an archive; without one they start as well.
$(CLASSES): $(STAMP)
	@echo "preparing the JVMs of Kafka and Spark (half a minute the first time)"
	@$(BIN)/python -m coordinator.embedded.prepare || true
	@touch $@

# The same look-up as the broker's own, before anything else takes time.
java:
	@for java in $${JAVA_HOME:+"$$JAVA_HOME/bin/java"} java; do \
	    said=$$("$$java" -version 2>&1 || true); \
	    major=$$(sed -nE 's/.*version "(1\.)?([0-9]+).*/\2/p' <<< "$$said"); \
	    [ "$${major:-0}" -ge 17 ] && exit 0; \
	done; \
	echo "error: no Java 17 or newer found in JAVA_HOME or PATH:" \
	    "install Java 17 or 21 (Debian: apt install openjdk-17-jre-headless)" >&2; exit 1
