# make reproduce | kick-the-tires | test | report | doctor | benchmark | nightly | soak | install
# SCALE=laptop chooses how much is reproduced; PYTHON=... INSTALL=no uses the interpreter at hand as it is.
# LAUNCH=slurm gives the experiments to a scheduler (conf/launch/); ARGS='rerun=failed seed=1': further overrides
# WORKERS=2: processes that share out the tests; one of them starts ranks, one at the end times what it starts
# STRICT=yes: a test that is skipped because Chromium, mpiexec, Slurm or DeepSpeed is missing fails.

PYTHON  ?= python3
INSTALL ?= yes
SCALE   ?= laptop
LAUNCH  ?= local
ARGS    ?=
TESTS   ?= tests
STRICT  ?= no
WORKERS ?= 2
# make soak: what is drawn, kills of sweeps, random configs without ranks, and with
SEED    ?=
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
FATAL := --no-skip=chromium,mpiexec,slurm,deepspeed
endif

# a command is told to stop when make is gone, however make went
GUARD := $(shell command -v setpriv >/dev/null 2>&1 && echo setpriv --pdeathsig TERM)

.PHONY: reproduce kick-the-tires test lint report doctor benchmark nightly soak install clean ae-bundle

reproduce: $(READY)
	@$(GUARD) $(RUN) -m suite reproduce scale=$(SCALE) launch=$(LAUNCH) $(ARGS)

# an evaluator's first five minutes: what works here, claims of each paper that the engine answers, and the page
kick-the-tires: $(READY)
	-@$(RUN) -m suite doctor
	@$(GUARD) $(RUN) -m suite reproduce scale=kick_the_tires $(ARGS)

test: $(READY) lint
	@$(GUARD) $(RUN) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(FATAL) $(TESTS)

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
	@$(GUARD) $(RUN) -m tests.soak $(if $(SEED),--seed=$(SEED)) --kills=$(KILLS) --configs=$(CONFIGS) --real=$(REAL)

nightly: $(READY)
	@$(GUARD) $(RUN) -m suite nightly $(ARGS)

install: $(READY)

# torch goes in first and alone: the pinned release takes the CPU build where one is at hand; deepspeed builds no kernels
.venv/ready: pyproject.toml constraints.txt
	$(GUARD) $(PYTHON) -m venv .venv
	$(GUARD) .venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch setuptools hatchling editables
	$(GUARD) env DS_BUILD_OPS=0 .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --constraint constraints.txt --editable ".[dev,test,deepspeed,mpi,sweeps,examples]"
	@touch .venv/ready

clean:
	rm -rf .venv reports/records reports/traces reports/index.html reports/records.csv reports/claims.csv reports/claims.json reports/league.json reports/league.csv
