# `make demo` and `make test` work from a clean clone, because each first builds what it needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Without a GPU, only the CPU code is built; TREADLE_CUDA=1 also builds CUDA code if nvcc is found.
export TREADLE_CUDA ?= gpu
CXX_SOURCES = $(shell git ls-files -co --exclude-standard '*.cpp' '*.h' '*.hpp' '*.cu' '*.cuh')

.DEFAULT_GOAL := help
.PHONY: help env build test test-all demo bench wheel readme-numbers new-op new-cell mutants lint format check-install clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## */\1\t/' | expand -t 15

env: $(VENV)/.dev build  ## make .venv with everything that development needs, and build treadle in it

build: $(VENV)/.installed  ## compile what changed, into python_pkg/treadle
	@$(BIN)/python -W ignore setup.py -q build_ext --inplace

test: $(VENV)/.dev build  ## run the fast tests (select some with ARGS="-k scale")
	@echo "the fast tests; make test-all runs the slow ones, too"
	$(BIN)/python -m pytest -n auto --dist worksteal --slow=none $(ARGS)

test-all: $(VENV)/.dev build  ## run all tests
	$(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

demo: $(VENV)/.demo build  ## train networks to read handwritten digits and to reproduce a photograph
	$(BIN)/python examples/digits.py $(ARGS)
	$(BIN)/python examples/photograph.py $(PHOTO_ARGS)

bench: $(VENV)/.dev build  ## verify every op, then time it against its baselines
	$(BIN)/python benchmarks/run.py $(ARGS)

wheel: $(VENV)/.dev  ## make the wheel of a release in dist/, for five torch minors (CUDA)
	$(BIN)/python tools/wheel.py $(ARGS)

readme-numbers: $(VENV)/.dev build  ## write the numbers in README.md and docs/*.md from committed results
	$(BIN)/python benchmarks/pages/readme_numbers.py

new-op:  ## write the skeleton of an elementwise op: make new-op NAME=relu2
	@$(PYTHON) tools/new_op.py "$(NAME)"

new-cell:  ## write the skeleton of a recurrent layer with a formula as its cell: make new-cell NAME=CIFG
	@$(PYTHON) tools/new_cell.py "$(NAME)"

mutants: $(VENV)/.dev build  ## apply each mutant to a copy of the tree, and show that a test kills it
	$(BIN)/python tests/mutants/run.py $(ARGS)

lint: $(VENV)/.dev  ## check style, types, sizes, words and includes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(CXX_SOURCES)
	$(BIN)/python tools/check_kernels.py
	$(BIN)/python tools/check_sizes.py
	$(BIN)/python tools/check_words.py

format: $(VENV)/.dev  ## format the sources so that they pass lint
	$(BIN)/ruff check --fix -q .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_SOURCES)

check-install: $(VENV)/.dev build  ## try every way of installing, in fresh environments
	tools/check_install.sh $(BIN)/python

clean:  ## remove build products, but not the environment
	rm -rf build dist python_pkg/*.egg-info
	rm -rf python_pkg/treadle/lib
	rm -f python_pkg/treadle/*.so $(VENV)/.installed

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: requirements.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -r requirements.txt
	@touch $@

$(VENV)/.dev: requirements-dev.txt $(VENV)/.demo
	$(BIN)/python -m pip install -q --disable-pip-version-check -r requirements-dev.txt
	@touch $@

# Compiles before pip runs, because pip would hide the compilers' output.
$(VENV)/.installed: pyproject.toml setup.py $(VENV)/.demo
	@$(BIN)/python -W ignore setup.py -q build_ext --inplace
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
