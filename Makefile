# make install | run | test | quick | test-lower | test-gpu | stress | check | docs | bench | bench-compare | mutants
# | clean. The first one makes .venv from requirements.lock; nothing else has to be done before.
# Python 3.11 under another name: make PYTHON=/path/to/python3.11 run

PYTHON ?= python3.11
BIN := .venv/bin
STAMP := .venv/complete

# Seconds for all tests, on a busy machine too. The watcher ends the run at the deadline and names the
# tests that were running; `timeout` ends the watcher if that fails.
DEADLINE ?= 4200
# Processes that run tests: more than the two cores of CI, because some tests wait.
WORKERS ?= 4
SUITE = timeout --foreground --kill-after=60 $$(($(DEADLINE) + 60)) \
	$(BIN)/python -m tests.suite --deadline $(DEADLINE) --workers $(WORKERS)
# The numerical core and what holds the structure.
QUICK := $(addprefix tests/,test_setup.py test_structure.py environments/test_environments.py \
	$(addprefix agents/,acting d4pg learning networks replay) \
	$(addprefix rl_replicator/,collectives layers optimizers runs step))
ON_GPU := $(addprefix tests/,conformance $(addprefix agents/,d4pg learning networks) \
	$(addprefix rl_replicator/,backends collectives layers learners optimizers step))
# How many times `make stress` runs TESTS.
N ?= 10

.PHONY: install run test quick test-lower test-gpu stress check docs bench bench-compare mutants clean lock wheel-check
.DEFAULT_GOAL := test

install: $(STAMP)
	@echo 'Installed. Next: source .venv/bin/activate'

run: $(STAMP)
	$(BIN)/rl-replicator train d4pg --env cartpole:swingup --seed 1 --steps 40000

test: $(STAMP)
	$(SUITE)

# The inner loop: no processes, no learning, nothing that takes long or waits.
quick: WORKERS = 3
quick: $(STAMP)
	$(SUITE) -m "not processes and not learning and not slow" $(QUICK)

# The lower end of the range of MuJoCo, which hides the pinned one: environments and frames, in a minute.
# PYTHONPATH=build/lower make run trains with it.
LOWER_END := build/lower
test-lower: $(LOWER_END)/complete
	PYTHONPATH=$(LOWER_END) $(SUITE) -m "not processes and not learning" \
		tests/environments tests/agents/cli/test_renderer.py \
		--ignore tests/environments/test_engines.py

$(LOWER_END)/complete: requirements-lower.txt $(STAMP)
	rm -rf $(LOWER_END)
	$(BIN)/python -m pip install --quiet --no-deps --target $(LOWER_END) -r requirements-lower.txt
	touch $@

# What computes in the tests' own process, on four parts of the first GPU.
test-gpu: export RL_REPLICATOR_TEST_GPU = 1
test-gpu: $(STAMP)
	$(SUITE) -m "not processes and not learning and not slow and not cpu" $(ON_GPU)

# make stress TESTS=tests/launchpad N=20: repeats tests beside two busy loops, counts failures.
stress: $(STAMP)
	@test -n "$(TESTS)" || { echo "expected TESTS=path/of/tests, got none" >&2; exit 2; }
	$(BIN)/python -m tests.suite.stress $(N) $(TESTS)

check: $(STAMP)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/mkdocs build --strict
	$(BIN)/python -m tests.structure

# The documentation as a site: build/site/index.html. A broken link is an error.
export NO_MKDOCS_2_WARNING := 1
docs: $(STAMP)
	$(BIN)/mkdocs build --strict

# Measures this project beside its peers, at most half an hour on two idle cores; writes $(OUT).
# make bench-compare A=bench/results B=build/bench prints what has become slower between two runs.
OUT ?= bench/results
bench: $(STAMP)
	$(BIN)/python -m bench --out $(OUT)

bench-compare: $(STAMP)
	@test -n "$(A)" -a -n "$(B)" || { echo "expected A=BEFORE B=AFTER, files or folders" >&2; exit 2; }
	$(BIN)/python -m bench.compare $(A) $(B)

# Small faults in the code, which the tests must notice: docs/testing.md. One module:
# make mutants MUTANTS="--modules agents.d4pg.losses"
mutants: $(STAMP)
	OPENBLAS_NUM_THREADS=1 TF_CPP_MIN_LOG_LEVEL=3 nice $(BIN)/python -m tests.mutants.run $(MUTANTS)

# Installs the wheel into a new environment and uses it there. Downloads all packages again.
wheel-check:
	.ci/wheel $(PYTHON)

# Resolves pyproject.toml anew. Needs uv on the path.
lock:
	uv pip compile --quiet --python-version 3.11 --extra dev --extra docs --generate-hashes --no-header \
		--no-annotate --no-emit-index-url --no-emit-find-links --upgrade \
		--output-file requirements.lock pyproject.toml

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): requirements.lock pyproject.toml .ci/venv
	.ci/venv $(PYTHON)
