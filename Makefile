# All tasks of this project. Needs make and Python 3.11 or newer.

# The Python of .venv; empty means the first one on PATH that is new enough.
PYTHON ?=
# Test processes.
JOBS ?= 2
# More arguments for pytest: make test ARGS="-k journal"
ARGS ?=
# Extras that the tests need, locked with the rest.
OLDEST_EXTRAS := --extra spark --extra cli --extra sql
LOCKED_EXTRAS := $(OLDEST_EXTRAS) --extra s3 --extra gcs --extra azure

PY := .venv/bin/python
STAMP := .venv/.stamp
OLDEST := .venv-oldest/.stamp
BROWSER := .venv/.browser
PYTEST := $(PY) -m pytest -n $(JOBS) --dist loadgroup
# Tests of random clauses: `make test-clauses` tries many more of them than `make test`.
CLAUSE_PROPERTIES := tests/engines/test_clause_property.py tests/engines/test_apply_in_order_property.py \
	tests/engines/test_null_keys.py::test_many_null_safe_clauses_agree_with_duckdb
# The fast tests on the oldest of everything; DuckDB has no MERGE there, so all cases of its part in a merge run. Then
# some on Spark, and the first pages of a reader. pytest's status 5 means that ARGS deselected every test.
ON_OLDEST_DUCKDB := changes clauses
ON_OLDEST_SPARK := keys strategies
PAGES_ON_OLDEST := README.md quickstart.md
# The oldest PySpark does.
LEAVES_SOCKETS := -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning
PYTEST_OLDEST = .venv-oldest/bin/python -m pytest -n $(JOBS) --dist loadgroup
TEST_OLDEST = for tests in \
	'--quick tests/core tests/engines tests/spec' \
	'--engine duckdb $(ON_OLDEST_DUCKDB:%=tests/engines/test_%.py)'; do \
	$(PYTEST_OLDEST) -m "not slow and not spark" $$tests $(ARGS) || [ $$? -eq 5 ] || exit 1; done; \
	$(PYTEST_OLDEST) $(LEAVES_SOCKETS) --quick --engine spark $(ON_OLDEST_SPARK:%=tests/engines/test_%.py) \
	$(PAGES_ON_OLDEST:%='tests/test_docs.py::test_a_page_runs_from_top_to_bottom[%]') $(ARGS) || [ $$? -eq 5 ]
COMPILE = uv=$$(PYTHON="$(PYTHON)" sh scripts/setup.sh --uv) && "$$uv" pip compile --quiet --upgrade --universal \
	--python-version 3.11 --generate-hashes --no-annotate --custom-compile-command "make lock"
# The peers of `make bench`, each in its own environment; fsspeckit needs a newer Python.
PEERS := delta-spark deltalake ducklake lance pyiceberg
# Spark finds Java by JAVA_HOME; the embedded engines do not need it.
WITH_JAVA := java_home=$$(sh scripts/java.sh); [ -z "$$java_home" ] || export JAVA_HOME="$$java_home";

.DEFAULT_GOAL := help
.PHONY: help setup test test-clauses test-writers test-s3 test-browser check options lint docs demo bench lock clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP) ## create .venv with the locked requirements and this project

$(STAMP): pyproject.toml requirements/dev.txt requirements/tools.txt scripts/setup.sh
	@PYTHON="$(PYTHON)" sh scripts/setup.sh
	@touch $@

$(OLDEST): $(STAMP) requirements/oldest.txt
	@PYTHON="$(PYTHON)" sh scripts/setup.sh --oldest
	@touch $@

$(BROWSER): $(STAMP) requirements/browser.txt
	@PYTHON="$(PYTHON)" sh scripts/setup.sh --browser
	@touch $@

test: $(STAMP) $(OLDEST) ## run every test, after setting up what they need
	@$(WITH_JAVA) $(PYTEST) $(ARGS)
	@$(WITH_JAVA) $(TEST_OLDEST)

test-clauses: $(STAMP) ## compare thousands of random MERGE clauses with DuckDB's own MERGE, on every engine
	@$(WITH_JAVA) $(PYTEST) --all-examples --engine duckdb --engine arrow --engine spark --engine spark-broadcast \
		--engine spark-shuffle $(CLAUSE_PROPERTIES) $(ARGS)

test-writers: $(STAMP) ## let many processes change one dataset, kill them, and read beside them; takes an hour
	@$(WITH_JAVA) $(PY) -m pytest --all-examples tests/crash/test_serial_order.py tests/crash/test_steady_readers.py \
		$(ARGS)

test-s3: $(STAMP) ## run every test of object stores, on SeaweedFS and on what else can be installed; takes half an hour
	@sh scripts/stores.sh
	@$(WITH_JAVA) $(PY) -m pytest --all-stores tests/object_stores $(ARGS)

test-browser: $(BROWSER) ## test HTML pages in headless Chromium, which is installed if missing
	@chromium=$$(sh scripts/chromium.sh) && CHROMIUM="$$chromium" $(PY) -m pytest tests/browser $(ARGS)

check: lint ## lint, format, types and the fast tests, in under two minutes
	@$(PYTEST) --quick -m "not slow and not spark" $(ARGS)

options: $(STAMP) ## write signatures and docstrings from the declared options
	$(PY) scripts/options.py

lint: $(STAMP) ## lint, format and types only
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy

# The variable silences an advertisement of mkdocs; --quiet would silence warnings about these pages, too.
docs: $(STAMP) ## build the documentation site into the folder site; warnings and broken links are errors
	@NO_MKDOCS_2_WARNING=1 $(PY) -W error -m mkdocs build --strict
	@echo "open site/index.html"

demo: $(STAMP) ## run a pipeline over three days of synthetic job postings, in the folder demo
	@JAVA_HOME=$$(sh scripts/java.sh --require) && export JAVA_HOME && $(PY) -m merganser.cli demo demo

bench: $(STAMP) ## measure merges by merganser and by its peers: make bench ARGS="A B --rows 1000000 --only arrow,polars"
	@$(WITH_JAVA) $(PY) -m benchmarks.run $(ARGS)
	@$(WITH_JAVA) [ -n "$(ARGS)" ] || [ -z "$$java_home" ] || $(PY) -m benchmarks.spark

lock: ## pin the newest allowed requirements, and the oldest, with hashes
	$(COMPILE) requirements/tools.in --output-file requirements/tools.txt
	$(COMPILE) --resolution lowest-direct pyproject.toml --group test $(OLDEST_EXTRAS) --output-file requirements/oldest.txt
	$(COMPILE) pyproject.toml --group dev $(LOCKED_EXTRAS) --output-file requirements/dev.txt
	$(PY) scripts/tested_versions.py
	$(COMPILE) --group browser --constraint requirements/dev.txt --output-file requirements/browser.txt
	for peer in $(PEERS); do $(COMPILE) benchmarks/peers/$$peer.in --output-file benchmarks/peers/$$peer.txt || exit 1; done
	$(subst 3.11,3.12,$(COMPILE)) benchmarks/peers/fsspeckit.in --output-file benchmarks/peers/fsspeckit.txt

clean: ## remove everything that make created
	rm -rf demo site .venv .venv-oldest .peers .tools .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
