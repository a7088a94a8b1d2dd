# One target per task. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CLIENTS := $(VENV)/clients
CLIENT_TESTS := tests/unit/api/clients
CPU_KERNELS := kernels/plimsoll_kernels/cpu
QUESTION ?= What is the capital of France?
# Many tests wait for servers, so three processes are faster than two on two cores.
TEST_PROCESSES ?= 3
SOURCES := hatch_build.py operator runtime kernels charts e2e tests benchmarks

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  \033[1m%-20s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(STAMP) ## Create .venv with all dependencies

# The editable install contains compiled kernels, so it is rebuilt when their sources change.
$(STAMP): pyproject.toml constraints.txt hatch_build.py $(wildcard $(CPU_KERNELS)/source/* $(CPU_KERNELS)/*records.py) $(CPU_KERNELS)/compile.py
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (PyTorch is large, so the first time takes some minutes)"
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

.PHONY: clients
clients: $(CLIENTS)/.installed ## Install the clients that tests run in separate environments: Python and Node agents, litellm, lm-eval

# They share the packages of .venv (such as PyTorch), overridden by the versions that they require.
$(CLIENTS)/.installed: $(STAMP) $(CLIENT_TESTS)/requirements.txt $(CLIENT_TESTS)/package.json
	@$(BIN)/python -m venv $(CLIENTS)
	@$(BIN)/python -c "import sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_path('purelib'))" \
		> "$$($(CLIENTS)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/project.pth"
	@echo "Installing into $(CLIENTS)"
	@$(CLIENTS)/bin/python -m pip install --quiet --no-warn-conflicts --requirement $(CLIENT_TESTS)/requirements.txt
	@cp $(CLIENT_TESTS)/package.json $(CLIENTS)
	@if command -v npm >/dev/null; then npm install --prefix $(CLIENTS) --no-package-lock --loglevel error; \
		else echo "npm is not installed: OpenAI's client for Node is left out, and its tests are skipped"; fi
	@touch $@

.PHONY: run
run: setup ## Serve the demo model on this machine and ask it a question (ONCE=1 to exit after the output, PORT=8001)
	@$(BIN)/plimsoll up examples/gemma.yaml --ask "$(QUESTION)" $(if $(PORT),--port $(PORT)) $(if $(ONCE),--once)

.PHONY: test
test: setup ## Run the tests without GPU and cluster, in minutes (PYTEST_ARGS=tests/unit/engine, TEST_PROCESSES=0 for one process)
	@$(BIN)/pytest -n $(TEST_PROCESSES) --dist loadfile -m "not long" $(PYTEST_ARGS)

.PHONY: test-long
test-long: setup ## Run the tests that `make test` leaves out: large matrices, many examples, servers that are killed (as above)
	@$(BIN)/pytest -n $(TEST_PROCESSES) --dist loadfile -m long $(PYTEST_ARGS)

.PHONY: check
check: setup ## Check lint, format, types, import layers, shell scripts and chart
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy $(SOURCES)
	@$(BIN)/lint-imports
	@$(BIN)/shellcheck .ci/run
	@$(BIN)/python charts/generate.py --check
	@$(PYTHON) e2e/cluster helm lint --strict charts/plimsoll

.PHONY: format
format: setup ## Format the sources
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

.PHONY: chart
chart: setup ## Regenerate the chart's schema, README, CRD copies and dashboards
	@$(BIN)/python charts/generate.py

.PHONY: reference
reference: setup ## Regenerate docs/reference (API, options, metrics, exit codes) and the gateway's pages
	@$(BIN)/python -m plimsoll_runtime.api.openapi.markdown docs/reference/api.md
	@$(BIN)/python -m plimsoll_runtime.api.openapi.gateway_pages operator/plimsoll_gateway/pages
	@$(BIN)/python -m plimsoll_runtime.cli.reference docs/reference
	@PYTHONPATH=benchmarks $(BIN)/python -m reference.pages docs/reference

.PHONY: constraints
constraints: setup ## Pin the package versions of .venv in constraints.txt
	@{ grep '^#' constraints.txt; $(BIN)/python -m pip freeze --exclude-editable | grep -vE '^(nvidia|cuda)-'; } > $(VENV)/constraints.txt
	@mv $(VENV)/constraints.txt constraints.txt

.PHONY: cluster
cluster: ## Start a real two-node Kubernetes on this machine (root; state in .cluster)
	@$(PYTHON) e2e/cluster up

.PHONY: cluster-down
cluster-down: ## Stop the cluster and remove all its state
	@$(PYTHON) e2e/cluster down

.PHONY: sweep
sweep: setup ## Serve a tiny model of every Transformers class, and write the results into docs/tasks/models.md
	@PYTHONPATH=benchmarks:tests/support $(BIN)/python -m sweep.run --page docs/tasks/models.md

.PHONY: e2e
e2e: setup ## Run the end-to-end scenarios on a real cluster (KUBECONFIG=... REGISTRY=... for your own; E2E_ARGS="--only drain")
	@PYTHONPATH=benchmarks $(BIN)/python e2e/prove.py $(E2E_ARGS)

.PHONY: e2e-long
e2e-long: setup ## Run the scenarios at full length, with figures in e2e/results (E2E_ARGS as above)
	@PYTHONPATH=benchmarks $(BIN)/python e2e/prove.py --long --record e2e/results/long.json $(E2E_ARGS)

.PHONY: bench
bench: setup ## Benchmark Plimsoll, its peers and the machine's limits (run `make bench-peers` first)
	@$(BIN)/python benchmarks/bench.py $(BENCH_ARGS)

.PHONY: bench-peers
bench-peers: setup ## Install the peers of the benchmarks (in ~/.cache/plimsoll/peers; takes some minutes)
	@$(BIN)/python benchmarks/peers/install.py $(PEERS_ARGS)

# If PYTHON is given, nothing is set up or downloaded: its missing packages come from WHEELS.
GPU_SETUP := $(if $(filter file,$(origin PYTHON)),setup)
GPU_PYTHON := $(if $(GPU_SETUP),$(BIN)/python,$(PYTHON))
GPU_WHEELS := build/wheels
GPU_PYTHON_VERSION ?= 3.12
GPU_ARGS = $(PART:%=--part %) $(if $(WHEELS),--wheels $(WHEELS)) $(if $(OUT),--out $(OUT)) $(if $(STATE),--state $(STATE)) \
	$(if $(LIMIT),--limit $(LIMIT)) $(if $(AGAIN),--again) $(if $(LIST),--list)

.PHONY: check-gpu
check-gpu: $(GPU_SETUP) ## Run all GPU checks, in resumable parts (PYTHON=... PART="..." LIST=1 LIMIT=540 OUT=... WHEELS=...)
	@PYTHONPATH=benchmarks $(GPU_PYTHON) -m gpu.check $(GPU_ARGS) $(CHECK_ARGS)

.PHONY: bench-gpu
bench-gpu: $(GPU_SETUP) ## Benchmark kernels, steps and serving on a GPU, in resumable parts (skipped without a GPU)
	@PYTHONPATH=benchmarks $(GPU_PYTHON) -m gpu.bench $(GPU_ARGS) $(BENCH_ARGS)

.PHONY: gpu-wheels
gpu-wheels: setup ## Download wheels for a GPU machine without network to WHEELS (build/wheels), for GPU_PYTHON_VERSION (3.12)
	@PYTHONPATH=benchmarks $(BIN)/python -m gpu.harness.wheels $(or $(WHEELS),$(GPU_WHEELS)) --python $(GPU_PYTHON_VERSION)

.PHONY: bench-control-plane
bench-control-plane: setup ## Benchmark operator and gateway with 1,000 models on a real kube-apiserver (`make cluster` builds it)
	@PYTHONPATH=benchmarks:e2e:tests/support $(BIN)/python -m control_plane.run $(BENCH_ARGS)

.PHONY: bench-scaling
bench-scaling: setup ## Simulate a day of bursty traffic: the scaler, fixed numbers of replicas, and an HPA (a minute)
	@PYTHONPATH=benchmarks $(BIN)/python -m scaling.run $(BENCH_ARGS)

.PHONY: bench-placement
bench-placement: setup ## Simulate loading times of placement, other rules and the offline bound (some minutes)
	@PYTHONPATH=benchmarks $(BIN)/python -m placement.run $(BENCH_ARGS)

.PHONY: soak
soak: setup ## Load a real server for an hour, looking for leaks, drift and changed outputs (SOAK_ARGS="--minutes 1" to try)
	@PYTHONPATH=benchmarks $(BIN)/python -m soak.run $(SOAK_ARGS)

.PHONY: fuzz
fuzz: setup ## Send 10,000 random requests to every endpoint, looking for failures, hangs and leaks (FUZZ_ARGS="--requests 500" to try)
	@PYTHONPATH=benchmarks $(BIN)/python -m fuzz.run $(FUZZ_ARGS)

.PHONY: abuse
abuse: setup ## Send requests through a gateway under abuse, with its chart's memory limit (needs root)
	@PYTHONPATH=benchmarks:e2e $(BIN)/python -m abuse.run $(ABUSE_ARGS)

.PHONY: clean
clean: ## Remove caches and builds (not .venv, not the cluster)
	@rm -rf dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
