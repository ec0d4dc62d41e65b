# make run | test | check | bench | clean. The first one makes .venv from requirements.lock; nothing
# else has to be done before. Python 3.11 under another name: make PYTHON=/path/to/python3.11 run

PYTHON ?= python3.11
BIN := .venv/bin
STAMP := .venv/complete

.PHONY: run test check bench clean lock
.DEFAULT_GOAL := test

run: $(STAMP)
	$(BIN)/rl-replicator train d4pg --env cartpole:swingup --seed 1

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile

check: $(STAMP)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

bench: $(STAMP)
	for script in bench/*.py; do $(BIN)/python $$script || exit 1; done

# Resolves pyproject.toml anew. Needs uv on the path.
lock:
	uv pip compile --quiet --python-version 3.11 --extra dev --generate-hashes --no-header \
		--no-annotate --no-emit-index-url --no-emit-find-links --upgrade \
		--output-file requirements.lock pyproject.toml

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): requirements.lock pyproject.toml .ci/venv
	.ci/venv $(PYTHON)
