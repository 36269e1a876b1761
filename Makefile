# `make` lists the targets. Variables: PYTHON, BANYAN_HARDWARE=cpu|cuda (scripts/setup), KIND=cpu|cuda and BUNDLE=folder
# (bundle, setup), UPGRADE=1 (lock), PORT and CONFIG (run), ARGS (the test targets: arguments for pytest).

include scripts/environment

BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
CONFIG ?= serve_config.yaml

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup setup-dev bundle run test test-unit test-engine test-cache test-serve test-faults test-attacks test-faults-short test-long test-commands test-models test-newer-runner test-clients test-page check format lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: ## install what serving needs into .venv, as locked; BUNDLE=folder: without a network
	@BUNDLE='$(BUNDLE)' scripts/setup

setup-dev: ## the same, and the tools for tests, checks and locks
	@BUNDLE='$(BUNDLE)' scripts/setup dev

bundle: ## collect in a folder what set-up fetches, for machines without a network; KIND=cpu|cuda: for that kind
	@BUNDLE='$(BUNDLE)' BANYAN_HARDWARE='$(or $(KIND),$(BANYAN_HARDWARE))' scripts/setup bundle

run: setup ## set up and serve; Ctrl-C ends it
	@exec $(BIN)/banyan serve --config $(CONFIG) $(if $(PORT),--port $(PORT))

test: test-unit test-engine test-cache test-serve ## set up and run all tests, the quick ones first

test-unit: setup-dev ## the tests that start no engine, in two processes; ARGS='-n 0' for one, as debuggers want it
	$(PYTEST) tests/unit --numprocesses 2 --dist worksteal $(ARGS)

test-engine: setup-dev ## the tests with real vLLM engines, in two processes; ARGS='-n 0' for one
	$(PYTEST) tests/engine --numprocesses 2 --dist loadfile $(ARGS)

test-cache: setup-dev ## the tests with LMCache between engines; not beside others, which would starve its servers
	$(PYTEST) tests/cache --numprocesses 2 --dist loadfile $(ARGS)

test-serve: setup-dev ## the tests with real Ray Serve, LMCache and HTTP
	$(PYTEST) tests/serve $(ARGS)

test-faults: setup-dev ## what dies, hangs, attacks and leaves, at length: an hour
	$(PYTEST) tests/faults -s --kill-seconds 600 --least-kills 8 --schema-cases 2000 --fuzz-seconds 600 -m '' $(ARGS)

test-attacks: setup-dev ## all fifteen attacks at once beside two innocent tenants: twenty minutes; fails on two cores today
	$(PYTEST) tests/faults/test_attacks.py -s --attack-seconds 1200 -m '' $(ARGS)

test-faults-short: setup-dev ## the same for ten minutes: before a change is landed
	$(PYTEST) tests/faults $(ARGS)

test-long: setup-dev ## what `make test` leaves out because it takes minutes: before a change is landed
	$(PYTEST) tests/unit tests/engine --numprocesses 2 --dist loadfile -m long $(ARGS)
	$(PYTEST) tests/cache -m long $(ARGS)
	$(PYTEST) tests/serve -m long $(ARGS)

test-commands: setup-dev ## the commands of docs/operating.md, typed: minutes, Ray's own ports; not part of `test`
	$(PYTEST) tests/commands $(ARGS)

test-models: setup-dev ## with tokenizers and weights of published models, fetched first; not part of `make test`
	scripts/models
	$(PYTEST) tests/models $(ARGS)

test-backends: setup-dev ## searches in front of servers as published: vLLM, llama.cpp, compiled first; not part of `make test`
	scripts/models
	scripts/backends
	$(PYTEST) tests/backends -m '' --timeout 900 $(ARGS)

NEWER_RUNNER := model_runner generation stepwise kv_clamp token_beam json_schema write_ahead scoring \
	reward_families verification

test-newer-runner: setup-dev ## engines on vLLM's model runner for GPUs, with Triton's interpreter, fetched first (not in test)
	scripts/triton
	PYTHONPATH=.triton TRITON_INTERPRET=1 VLLM_USE_V2_MODEL_RUNNER=1 $(PYTEST) -m '' --timeout 3600 $(NEWER_RUNNER:%=tests/engine/test_%.py) $(ARGS)

CLIENTS := $(notdir $(basename $(wildcard requirements/clients/*.lock)))
# Loaders of training data need torch, and take .venv's, behind what their own locks say: another one would be hundreds of
# megabytes, and which build of it this machine needs only scripts/setup knows.
LOADERS := trl verl
# Only where there is npm; their tests are skipped where there is no Node.js.
NODE_CLIENTS := $(if $(shell command -v npm),$(notdir $(patsubst %/,%,$(dir $(wildcard requirements/clients/*/package-lock.json)))))
PACKAGES := -c 'import sysconfig; print(sysconfig.get_path("purelib"))'

test-clients: setup-dev $(CLIENTS:%=.venv-clients/%/.done) $(NODE_CLIENTS:%=.venv-clients/%/.done) ## clients and loaders, as published, with the served application (not in test)
	$(PYTEST) tests/clients -s $(ARGS)

.venv-clients/%/.done: requirements/clients/%.lock
	$(BIN)/python -m venv --clear $(@D)
	$(@D)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --requirement $<
	$(if $(filter $*,$(LOADERS)),$(BIN)/python $(PACKAGES) >"$$($(@D)/bin/python $(PACKAGES))/behind.pth")
	touch $@

$(NODE_CLIENTS:%=.venv-clients/%/.done): .venv-clients/%/.done: requirements/clients/%/package-lock.json
	mkdir -p $(@D)
	cp $(<D)/package.json $< $(@D)
	cd $(@D) && npm ci --ignore-scripts --no-audit --no-fund --silent
	touch $@

# playwright alone: what else the tests import is .venv's, behind it. It brings no browser.
.venv-page/.done: requirements/page.lock
	$(BIN)/python -m venv --clear $(@D)
	$(@D)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --requirement $<
	$(BIN)/python $(PACKAGES) >"$$($(@D)/bin/python $(PACKAGES))/behind.pth"
	touch $@

test-page: setup-dev .venv-page/.done ## the page, in Debian's Chromium (apt-get install chromium); not part of `make test`
	.venv-page/bin/python -m pytest tests/page -s $(ARGS)

check: setup-dev ## format, lint, types, and which package may import which
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --num-workers 2
	$(BIN)/lint-imports

format: setup-dev ## format and fix what ruff can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: setup-dev ## resolve all locks again (requirements/README.md)
	$(BIN)/python scripts/lock.py cpu $(if $(UPGRADE),--upgrade)
	$(BIN)/python scripts/lock.py cuda $(if $(UPGRADE),--upgrade)

clean: ## remove what set-up, tests and checks made
	rm -rf .venv .venv-backends .venv-clients .venv-page *.egg-info build dist .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
