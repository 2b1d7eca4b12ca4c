# Two commands for you: `make demo` and `make test`. Each sets itself up in .venv.
PYTHON ?= python3
VENV := .venv
SMOKE := .venv-smoke
RUN := $(VENV)/bin/python

.PHONY: demo test test-all celery-suite smoke soak lint format docs bench clean

demo: $(VENV)/demo
	$(RUN) -m fleetlimit.cli demo

test: $(VENV)/ready
	$(RUN) -m pytest

# Each Celery that is supported, and each CPython that is found: about five minutes for each.
test-all: $(VENV)/ready
	$(RUN) -m nox

# Celery's own integration suite, without limits and with every task limited, on Redis and RabbitMQ: about two hours.
# A part of it: make celery-suite PART="--broker redis --mode room t/integration/test_tasks.py"
celery-suite: $(VENV)/ready
	$(RUN) -m tests.celery_suite $(PART)

# The image of the Dockerfile, run by a Docker engine: half a minute once the base images are there.
# In an environment of its own, for pytest-celery is a plugin that would load with all other tests.
smoke: $(SMOKE)/ready
	$(SMOKE)/bin/python -m pytest smoke

# Each fault ten times, all ten whatever fails; then what each did: about two hours.
soak: $(VENV)/ready
	file=$$(mktemp); failed=0; \
	for n in 1 2 3 4 5 6 7 8 9 10; do \
	  FLEETLIMIT_SOAK=$$file $(RUN) -m pytest -q tests/faults || failed=1; \
	done; \
	$(RUN) -m tests.faults.report $$file && exit $$failed

lint: $(VENV)/ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(VENV)/ready
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# The site, in site/, after the pages and figures that are made from the code. A warning, such as a link that leads nowhere, is an error.
docs: $(VENV)/docs
	$(RUN) -m tools.site

# About six minutes; each prints ratios against a baseline of the same run.
bench: $(VENV)/ready
	$(RUN) benchmarks/decision.py
	$(RUN) benchmarks/cost.py
	$(RUN) benchmarks/overhead.py
	$(RUN) benchmarks/fleet.py

# What the demo needs, and no more: so that its user does not wait for the tools of those who work on fleetlimit.
$(VENV)/demo: pyproject.toml
	@echo "fleetlimit: the demo needs packages; they are installed in $(VENV), once. This takes about half a minute."
	@$(PYTHON) -c 'import sys; sys.exit("fleetlimit needs Python 3.11+ here: make PYTHON=python3.12") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --upgrade 'pip>=25.1'
	$(RUN) -m pip install --quiet --editable '.[demo]'
	touch $@

$(VENV)/ready: $(VENV)/demo
	@echo "fleetlimit: the packages of tests and checks are installed in $(VENV), once. This takes about a minute."
	$(RUN) -m pip install --quiet --editable '.[demo,lab]' --group test --group lint
	touch $@

$(VENV)/docs: $(VENV)/demo
	$(RUN) -m pip install --quiet --group docs
	touch $@

$(SMOKE)/ready: pyproject.toml
	$(PYTHON) -m venv $(SMOKE)
	$(SMOKE)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(SMOKE)/bin/python -m pip install --quiet --editable . --group smoke
	touch $@

clean:
	rm -rf $(VENV) $(SMOKE) .mypy_cache .pytest_cache .ruff_cache .hypothesis .cache dist site
