VENV ?= .venv
PYTHON := $(VENV)/bin/python

.PHONY: build
build:  ## compile what changed, into python_pkg/treadle
	@$(PYTHON) -W ignore setup.py -q build_ext --inplace
