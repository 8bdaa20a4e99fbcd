# Two commands set everything up: `make demo` and `make test`. Each makes the environment it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL ?= unet
# Of pyproject.toml.
EXTRAS ?= all
JOBS ?= auto
# Pinned: a range may draw gigabytes of CUDA libraries. PIP_INDEX_URL chooses where it comes from.
TORCH ?= torch==2.13.0
# In one call with PyTorch, or another build of it may be drawn in.
ZOO ?= $(TORCH) torchvision==0.28.0 timm transformers onnxscript

# Compiled modules are kept, whatever this shell says: tests start hundreds of processes.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo docs examples wheel test test-slow coverage test-examples test-nodes test-torch test-zoo test-zoo-sample test-steady check format bench bench-cuda bench-devices bench-fission bench-infer bench-memory bench-modules bench-ops bench-pipeline bench-place bench-plan bench-structures bench-train bench-weights bench-workers regress fuzz fuzz-nodes faults clean

demo: $(VENV)/ready
	MODEL=$(MODEL) $(BIN)/python tools/demo.py

# The whole path on a tiny model first: a broken installation shows in seconds.
test: $(VENV)/dev
	$(BIN)/python -m pytest -q -x tests/test_tiny.py
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile -m 'not slow' --ignore tests/test_tiny.py tests $(ARGS)

# What takes more than ten seconds a test: more of the large nets; with PyTorch where it is there.
test-slow: $(VENV)/dev
	$(BIN)/python -m pytest -q -n $(JOBS) --dist load -m slow tests $(ARGS)

# Lines that no test reaches. Python 3.12 has a cheap way to see them (sysmon); before it, tests take
# a tenth to a half longer.
coverage: $(VENV)/dev
	COVERAGE_CORE=$$($(BIN)/python -c "import sys; print('sysmon' if sys.version_info >= (3, 12) else 'ctrace')") \
	$(MAKE) test ARGS="--cov --cov-report=term:skip-covered $(ARGS)"

test-torch: $(VENV)/torch
	$(BIN)/python -m pytest -q -n $(JOBS) --dist load -m 'torch and not slow' tests/torch tests/cli

# Gradients judged by ONNX's own tests of operators: make test-nodes ARGS='--only attention --each'
test-nodes: $(VENV)/dev
	$(BIN)/python -m tests.grad.nodes $(ARGS)

test-zoo: $(VENV)/zoo
	$(BIN)/python -m tests.zoo $(ARGS)
	$(BIN)/python -m tests.zoo --fresh $(ARGS)

test-zoo-sample: $(VENV)/zoo
	$(BIN)/python -m pytest -q -n $(JOBS) --dist load -m 'zoo and sample' tests/zoo

# Every example at small size; build/kits: what the C++ and C# ones are built with, out of npm.
test-examples: $(VENV)/torch
	$(MAKE) build/kits/environment || echo "the C++ and C# examples are skipped: see above"
	! test -f build/kits/environment || . build/kits/environment; \
	$(BIN)/python -m pytest -q -n $(JOBS) --dist load tests/examples

build/kits/environment: | $(VENV)/dev
	$(BIN)/python tools/deploy_kits.py build/kits

# 20 runs of every training step with two threads, bit by bit: of models/, and of the zoo.
test-steady: $(VENV)/zoo
	$(BIN)/python -m tests.grad.steady $(ARGS)
	$(BIN)/python -m tests.zoo --runs 20 --threads 2 --exporter dynamo --exporter legacy

# Every example at full size; refreshes examples/output. One: make examples ARGS=small_gpt
examples: $(VENV)/torch
	$(BIN)/python tools/examples.py $(ARGS)

# build/site, with warnings as errors and every link looked at; opened without a server.
docs: $(VENV)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# A wheel, and what it takes and does in environments of its own: make wheel ARGS='--extras all'
wheel: $(VENV)/dev
	rm -rf dist
	$(BIN)/python -m build --quiet
	$(BIN)/python tools/wheel_smoke.py dist/*.whl $(ARGS)

check: $(VENV)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/sizes.py

format: $(VENV)/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/dev
	$(BIN)/python tools/regress.py --quick

bench-cuda: $(VENV)/dev
	$(BIN)/python tools/cuda_all.py $(ARGS)

bench-fission: $(VENV)/dev
	$(BIN)/python tools/bench_fission.py $(ARGS)

bench-devices: $(VENV)/dev
	$(BIN)/python tools/bench_devices.py --must-show $(ARGS)

bench-memory: $(VENV)/dev
	$(BIN)/python tools/bench_memory.py $(ARGS)

# Weights that onnxruntime holds twice or too wide: make bench-weights ARGS='--nets gpt2'
bench-weights: $(VENV)/zoo
	$(BIN)/python tools/bench_weights.py $(ARGS)

# What onnxruntime keeps of nodes: make bench-structures ARGS='--fit FILE.onnx ...'
bench-structures: $(VENV)/dev
	$(BIN)/python tools/bench_structures.py $(ARGS)

bench-place: $(VENV)/dev
	$(BIN)/python tools/bench_place.py $(ARGS)

# Single operators against OpenVINO's and PyTorch's: make bench-ops ARGS='--only Conv --threads 1'
bench-ops: $(VENV)/torch
	$(BIN)/python tools/bench_ops.py $(ARGS)

# Inference against OpenVINO's and PyTorch's: make bench-infer ARGS='--nets bert --threads 1'
bench-infer: $(VENV)/torch
	$(BIN)/python tools/bench_infer.py $(ARGS)

bench-pipeline: $(VENV)/dev
	$(BIN)/python tools/bench_pipeline.py $(ARGS)

bench-plan: $(VENV)/dev
	$(BIN)/python tools/bench_plan.py $(ARGS)

bench-train: $(VENV)/torch
	$(BIN)/python tools/bench_train.py $(ARGS)

# Nets of torchvision, timm and transformers against PyTorch: make bench-modules ARGS='--nets swin'.
bench-modules: $(VENV)/zoo
	$(BIN)/python tools/bench_modules.py $(ARGS)

# Processes that train together: two idle cores. One row: make bench-workers ARGS='--only pipeline'.
bench-workers: $(VENV)/dev
	$(BIN)/python tools/bench_workers.py $(ARGS)

regress: $(VENV)/dev
	$(BIN)/python tools/regress.py

# Random files and models: make fuzz ARGS='--minutes 30 --seed 1'. Findings go to fuzz-found/.
fuzz: $(VENV)/dev
	$(BIN)/python -m tests.fuzz $(ARGS)

# Random nodes of every operator, and short chains: make fuzz-nodes ARGS='--minutes 10 --seed 1'.
fuzz-nodes: $(VENV)/dev
	$(BIN)/python -m tests.fuzz_nodes $(ARGS)

# Kills and full disks at every write of every command: make faults ARGS='--only train'.
faults: $(VENV)/dev
	$(BIN)/python -m tests.faults $(ARGS)

$(VENV)/ready: pyproject.toml $(wildcard onnxremat/*/*.c)
	$(PYTHON) tools/require_python.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[$(EXTRAS)]'
	$(BIN)/python -c "from onnxremat.planner.search import warm_up; warm_up(); warm_up(2)" & search=$$!; \
	$(BIN)/python -c "from onnxremat.placement.kernels import warm_up; warm_up(); import onnxremat.workers.pipelines.kernels" \
	&& wait $$search
	@touch $@

$(VENV)/dev: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

$(VENV)/docs: $(VENV)/dev
	$(BIN)/python -m pip install --quiet --editable '.[dev,docs]'
	@touch $@

$(VENV)/torch: $(VENV)/dev
	$(BIN)/python -m pip install --quiet '$(TORCH)'
	$(BIN)/python -m pip install --quiet --editable '.[dev,torch]'
	@touch $@

$(VENV)/zoo: $(VENV)/dev
	$(BIN)/python -m pip install --quiet $(ZOO)
	$(BIN)/python -m pip install --quiet --editable '.[dev,zoo]'
	@touch $@

clean:
	rm -rf $(VENV) build dist demo regress-out fuzz-found .pytest_cache .ruff_cache .mypy_cache .hypothesis
