# Every chore has one entry. `make help` lists them.
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
# Many tests wait for servers: on two cores three processes are done sooner than two.
TEST_PROCESSES ?= 3
SOURCES := hatch_build.py operator runtime kernels charts e2e tests benchmarks

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  \033[1m%-14s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(STAMP) ## Make .venv with everything in it

# What is compiled into the editable install is made anew when its sources change.
$(STAMP): pyproject.toml constraints.txt hatch_build.py $(wildcard $(CPU_KERNELS)/source/* $(CPU_KERNELS)/*records.py) $(CPU_KERNELS)/compile.py
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (PyTorch is large: some minutes the first time)"
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

.PHONY: clients
clients: $(CLIENTS)/.installed ## Install the clients that tests run in environments of their own: agents of Python and Node, litellm, lm-eval

# They stand on .venv's packages (PyTorch among them), and have before those what their own bounds ask for.
$(CLIENTS)/.installed: $(STAMP) $(CLIENT_TESTS)/requirements.txt $(CLIENT_TESTS)/package.json
	@$(BIN)/python -m venv $(CLIENTS)
	@$(BIN)/python -c "import sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_path('purelib'))" \
		> "$$($(CLIENTS)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/project.pth"
	@echo "Installing into $(CLIENTS)"
	@$(CLIENTS)/bin/python -m pip install --quiet --no-warn-conflicts --requirement $(CLIENT_TESTS)/requirements.txt
	@cp $(CLIENT_TESTS)/package.json $(CLIENTS)
	@if command -v npm >/dev/null; then npm install --prefix $(CLIENTS) --no-package-lock --loglevel error; \
		else echo "No npm here: OpenAI's client for Node is left out, and its tests say so"; fi
	@touch $@

.PHONY: run
run: setup ## Serve the demo model on this machine and ask it a question (ONCE=1 ends after the answer, PORT=8001)
	@$(BIN)/plimsoll up examples/gemma.yaml --ask "$(QUESTION)" $(if $(PORT),--port $(PORT)) $(if $(ONCE),--once)

.PHONY: test
test: setup ## Run the tests (no GPU, no cluster; PYTEST_ARGS=tests/unit/engine, TEST_PROCESSES=0 for one process)
	@$(BIN)/pytest -n $(TEST_PROCESSES) --dist loadfile $(PYTEST_ARGS)

.PHONY: check
check: setup ## Lint, format, types, import layers, shell, chart
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy $(SOURCES)
	@$(BIN)/lint-imports
	@$(BIN)/shellcheck .ci/run
	@$(BIN)/python charts/generate.py --check
	@$(PYTHON) e2e/cluster helm lint --strict charts/plimsoll

.PHONY: format
format: setup ## Rewrite the sources in the project's format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

.PHONY: chart
chart: setup ## Make the chart's schema, README and CRD copies anew
	@$(BIN)/python charts/generate.py

.PHONY: reference
reference: setup ## Write the references: of the API in docs/api.md, with the gateway's copy; of options in docs/options.md and .json
	@$(BIN)/python -m plimsoll_runtime.api.openapi.markdown docs/api.md
	@$(BIN)/python -m plimsoll_runtime.api.openapi.gateway_pages operator/plimsoll_gateway/pages
	@$(BIN)/python -m plimsoll_runtime.cli.reference docs

.PHONY: constraints
constraints: setup ## Pin in constraints.txt what .venv holds
	@{ grep '^#' constraints.txt; $(BIN)/python -m pip freeze --exclude-editable | grep -vE '^(nvidia|cuda)-'; } > $(VENV)/constraints.txt
	@mv $(VENV)/constraints.txt constraints.txt

.PHONY: cluster
cluster: ## Start a real two-node Kubernetes on this machine (root; state in .cluster)
	@$(PYTHON) e2e/cluster up

.PHONY: cluster-down
cluster-down: ## Stop it and leave nothing behind
	@$(PYTHON) e2e/cluster down

.PHONY: sweep
sweep: setup ## Serve a tiny model of every class of Transformers, and write what was seen into docs/models.md
	@PYTHONPATH=benchmarks:tests/support $(BIN)/python -m sweep.run --page docs/models.md

.PHONY: e2e
e2e: setup ## Prove everything on a real cluster (KUBECONFIG=... REGISTRY=... for your own; E2E_ARGS="--only drain")
	@PYTHONPATH=benchmarks $(BIN)/python e2e/prove.py $(E2E_ARGS)

.PHONY: e2e-long
e2e-long: setup ## The same at full length, with figures in e2e/results (E2E_ARGS as above)
	@PYTHONPATH=benchmarks $(BIN)/python e2e/prove.py --long --record e2e/results/long.json $(E2E_ARGS)

.PHONY: bench
bench: setup ## Measure us beside the peers and the machine's limits (`make bench-peers` first)
	@$(BIN)/python benchmarks/bench.py $(BENCH_ARGS)

.PHONY: bench-peers
bench-peers: setup ## Install what bench measures beside us (in ~/.cache/plimsoll/peers; some minutes)
	@$(BIN)/python benchmarks/peers/install.py $(PEERS_ARGS)

# With a PYTHON of the caller's nothing is set up and nothing is fetched: what it lacks comes from WHEELS.
GPU_SETUP := $(if $(filter file,$(origin PYTHON)),setup)
GPU_PYTHON := $(if $(GPU_SETUP),$(BIN)/python,$(PYTHON))
GPU_WHEELS := build/wheels
GPU_PYTHON_VERSION ?= 3.12
GPU_ARGS = $(PART:%=--part %) $(if $(WHEELS),--wheels $(WHEELS)) $(if $(OUT),--out $(OUT)) $(if $(STATE),--state $(STATE)) \
	$(if $(LIMIT),--limit $(LIMIT)) $(if $(AGAIN),--again) $(if $(LIST),--list)

.PHONY: check-gpu
check-gpu: $(GPU_SETUP) ## All that must hold on a GPU, in parts that go on (PYTHON=... PART="..." LIST=1 LIMIT=540 OUT=... WHEELS=...)
	@PYTHONPATH=benchmarks $(GPU_PYTHON) -m gpu.check $(GPU_ARGS) $(CHECK_ARGS)

.PHONY: bench-gpu
bench-gpu: $(GPU_SETUP) ## Kernels, steps and serving beside a GPU's limits, in parts likewise (skipped where there is none)
	@PYTHONPATH=benchmarks $(GPU_PYTHON) -m gpu.bench $(GPU_ARGS) $(BENCH_ARGS)

.PHONY: gpu-wheels
gpu-wheels: setup ## What a GPU's machine may lack, as wheels in WHEELS (build/wheels) for GPU_PYTHON_VERSION (3.12)
	@PYTHONPATH=benchmarks $(BIN)/python -m gpu.harness.wheels $(or $(WHEELS),$(GPU_WHEELS)) --python $(GPU_PYTHON_VERSION)

.PHONY: bench-control-plane
bench-control-plane: setup ## 1,000 models on etcd and a real kube-apiserver, and the gateway's table (`make cluster` builds them)
	@PYTHONPATH=benchmarks:e2e:tests/support $(BIN)/python -m control_plane.run $(BENCH_ARGS)

.PHONY: bench-scaling
bench-scaling: setup ## A day of bursty traffic through the scaler, beside fixed numbers of replicas and an HPA's rule (a minute)
	@PYTHONPATH=benchmarks $(BIN)/python -m scaling.run $(BENCH_ARGS)

.PHONY: bench-placement
bench-placement: setup ## Seconds of loading that placement pays, beside other rules and the offline bound (some minutes)
	@PYTHONPATH=benchmarks $(BIN)/python -m placement.run $(BENCH_ARGS)

.PHONY: soak
soak: setup ## An hour of mixed load on a real server: leaks, drift, answers that change (SOAK_ARGS="--minutes 1" to try)
	@PYTHONPATH=benchmarks $(BIN)/python -m soak.run $(SOAK_ARGS)

.PHONY: fuzz
fuzz: setup ## 10,000 requests that nobody would write, at every endpoint: failures, hangs, leaks (FUZZ_ARGS="--requests 500" to try)
	@PYTHONPATH=benchmarks $(BIN)/python -m fuzz.run $(FUZZ_ARGS)

.PHONY: abuse
abuse: setup ## Small requests through a gateway that is abused, under its chart's memory limit (root)
	@PYTHONPATH=benchmarks:e2e $(BIN)/python -m abuse.run $(ABUSE_ARGS)

.PHONY: clean
clean: ## Remove caches and builds (not .venv, not the cluster)
	@rm -rf dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
