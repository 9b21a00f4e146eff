# Every command makes what it needs: `make demo` and `make test` work on a fresh machine with Python >= 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help demo simulate test matrix check bench bench-net faults chaos goodput fuzz clean

help: ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile

demo: $(STAMP) ## Start the service, submit three jobs over REST on slow lines, turn a knob half-way; table and chart in out/
	$(BIN)/python -m tests.bench.demo

simulate: $(STAMP) ## Train digits under every strategy on a simulated 100 Mbit/s network
	$(BIN)/python -m tests.bench.simulated

test: $(STAMP) ## Run all tests
	$(BIN)/python -m pytest -n 2 --dist loadgroup

matrix: $(STAMP) ## Run the rest of the cross products of which the tests run a slice
	$(BIN)/python -m pytest -m matrix

check: $(STAMP) ## Lint, types, import direction
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/unit/test_imports.py

bench: $(STAMP) ## Run the benchmarks; each prints JSON lines
	$(BIN)/python -m tests.bench

bench-net: $(STAMP) ## Three hosts in network namespaces behind 100 Mbit/s links; needs root and ip netns
	$(BIN)/python -m tests.bench.net

faults: $(STAMP) ## Break the simulator on purpose: make faults COUNT=10000, or SEED=17 to see one schedule again
	$(BIN)/python -m tests.faults $(if $(SEED),--seed $(SEED),--count $(or $(COUNT),10000))

chaos: $(STAMP) ## Kill and freeze processes of a real job on Ray: make chaos FAULTS=50; prints what it cost, picture in out/
	$(BIN)/python -m tests.chaos --faults $(or $(FAULTS),20) --seed $(or $(SEED),1)

goodput: $(STAMP) ## Samples trained with a fault every 30 s over those of a calm run, without and with a spare: make goodput MINUTES=10
	$(BIN)/python -m tests.chaos --goodput --minutes $(or $(MINUTES),10) --seed $(or $(SEED),1)

fuzz: $(STAMP) ## Feed mutated payloads to the decoders: make fuzz COUNT=1000000
	$(BIN)/python -m tests.fuzz --count $(or $(COUNT),200000)

clean: ## Remove the environment and all outputs
	rm -rf $(VENV) out build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "raysync needs Python 3.11 or newer; try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@echo "installing into $(VENV); this takes a few minutes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo,dev,postgres]'
	@touch $(STAMP)
