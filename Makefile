# `make demo` and `make test` each work alone on a fresh clone: they need Python 3.11 or newer and make.
# Another interpreter: make test PYTHON=python3.12

PYTHON ?= python3
CHROMIUM ?= chromium
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEMO := runs/demo
NATIVE := src/helpers/ingest/native

.DEFAULT_GOAL := help
.PHONY: help demo test check lint types lab docs samples normalise dictionary picture sweeps fuzz bench calibration study soak clean

help:  ## what can be made
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

$(INSTALLED): pyproject.toml constraints.txt tools/build_native.py $(NATIVE)/lines.c
	$(if $(shell $(PYTHON) -c 'import sys; print("ok" if sys.version_info >= (3, 11) else "")' 2>/dev/null),,$(error \
	  rooflog needs Python 3.11 or newer; "$(PYTHON)" is $(or $(shell command -v $(PYTHON) >/dev/null && $(PYTHON) --version 2>&1),not there); name another: make PYTHON=python3.12))
	$(if $(shell $(PYTHON) -c 'import ensurepip, venv; print("ok")' 2>/dev/null),,$(error \
	  "$(PYTHON)" has no venv module (Debian and Ubuntu: apt install python3-venv)))
	@echo "Installing into $(VENV), once: one to three minutes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@ls $(NATIVE)/liblines.[sd]* >/dev/null 2>&1 || echo 'No C compiler that works: reading logs is several times slower.' \
	  'To change that, install one (Debian and Ubuntu: apt install gcc), then: touch tools/build_native.py, and make again.'
	@touch $@

# Exit code 2 is an answer too: the log holds too little for a law, and the answer says why.
define answer
	@printf '\n== rooflog run %s\n\n' '$(1)'
	@$(BIN)/rooflog run $(1) --out $(DEMO) || test $$? -eq 2
endef

demo: $(INSTALLED)  ## the answer for a real SGLang log and for a simulated one
	$(call answer,data/samples/sglang-sweep/server.log)
	$(call answer,data/samples/sim-field-case-a/server.log --context data/samples/sim-field-case-a/facts.yaml)
	@printf '\nThe reports: report.html in the folders named above.\n'

test: lint types  ## everything: style, types, unit tests, notebooks
	$(BIN)/pytest -n 2 --dist loadfile --nbval-lax tests notebooks

check: lint types  ## the fast part: no notebook, no simulation study
	$(BIN)/pytest -n 2 --dist loadfile -m 'not notebook and not slow' tests

lint: $(INSTALLED)
	$(BIN)/ruff check .

types: $(INSTALLED)
	$(BIN)/mypy

lab: $(INSTALLED)  ## JupyterLab at notebook 00, asking no server for news
	$(BIN)/jupyter lab --LabApp.default_url=/lab/tree/notebooks/00_diagnose.ipynb --LabApp.app_settings_dir='$(CURDIR)/tools/lab'

docs: $(INSTALLED)  ## the documentation, executed, as pages in runs/docs that open offline (a minute)
	PYTHONPATH=tools $(BIN)/python -m docsite

SIMULATED := field_case_a healthy_moe

samples: $(INSTALLED)  ## regenerate the simulated logs, byte for byte
	@for preset in $(SIMULATED); do \
	  folder=data/samples/sim-$$(echo $$preset | tr _ -); mkdir -p $$folder; \
	  $(BIN)/rooflog simulate $$preset --seed 0 --out $$folder/server.log --truth $$folder/truth.json || exit; \
	done
	@simulate() { mkdir -p data/samples/$$1; \
	  $(BIN)/rooflog simulate dense_sweep --seed $$2 --server "$$3" --out data/samples/$$1/server.log --truth data/samples/$$1/truth.json; }; \
	  simulate sim-regress-base 1 '{"prompts_per_req": 1.5}' && \
	  simulate sim-regress-new 4 '{"prompts_per_req": 1.5, "law": {"slope_s_per_req": 0.0005}}'
	$(BIN)/python tools/data_readme.py

normalise: $(INSTALLED)  ## execute the notebooks again and store them in normal form
	$(BIN)/python -m helpers.run normalise
	$(BIN)/python -m helpers.run normalise docs/*.ipynb

dictionary: $(INSTALLED)  ## regenerate the generated parts of data/README.md and docs/
	$(BIN)/python tools/data_readme.py
	PYTHONPATH=tools $(BIN)/python -m docsite reference

picture: $(INSTALLED)  ## the pictures of README.md: docs/answer.png and docs/watch.svg (needs chromium)
	$(BIN)/python tools/picture.py $(CHROMIUM)

sweeps: $(INSTALLED)  ## errors of the laws and of the prediction on public sweeps (needs ../shared)
	$(BIN)/pytest -q -s tests/test_measured_sweeps.py tests/physics/test_prediction.py

bench: $(INSTALLED)  ## speed and cost beside references measured in the same run (SCALE=full WRITE=docs/performance.md: an hour or two)
	PYTHONPATH=tools $(BIN)/python -m bench $(or $(SCALE),short) $(if $(ONLY),--only $(ONLY)) $(if $(WRITE),--write $(WRITE))

calibration: $(INSTALLED)  ## how often a comparison is right, 400 pairs each: docs/comparison.md anew (10 minutes)
	nice -n 10 $(BIN)/python tests/compare/calibration.py --write docs/comparison.md

study: $(INSTALLED)  ## 200 dumps of 5 to 20 MB with poison and a killed worker; runs and batches killed at 20 moments (an hour)
	PYTHONPATH=tools $(BIN)/python -m bench.batch_study 200
	PYTHONPATH=tools $(BIN)/python -m bench.batch_study 200 --cluster
	$(BIN)/python tests/batch/kill_study.py

soak: $(INSTALLED)  ## a million lines, twelve days of a log, through watch: its memory
	$(BIN)/python tests/watch/soak.py

fuzz: $(INSTALLED)  ## millions of mutated lines against the reader, for an hour; goes on where it was stopped
	nice -n 15 $(BIN)/python tests/fuzz/run_fuzz.py

clean:  ## remove everything that can be made again
	rm -rf $(VENV) runs build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis $(NATIVE)/liblines.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
