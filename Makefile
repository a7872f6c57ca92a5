# The one entry point: what CI runs is word for word what you run.

CARGO ?= cargo
TARGET ?= $(or $(CARGO_TARGET_DIR),target)

# Time budgets by suite, in seconds. They stop what hangs; each suite takes a small part of its own.
BUDGET_BUILD ?= 2400
BUDGET_UNIT ?= 300
BUDGET_INTEGRATION ?= 3000
BUDGET_DOC ?= 600
BUDGET_FUZZ ?= 900

# At a terminal in the foreground, so that Ctrl-C reaches the tests; else with all they have started.
WITHIN = timeout -k 10 $(shell [ -t 0 ] && echo --foreground)

.PHONY: help setup build demo test check mutants fuzz bench torture
.DEFAULT_GOAL := help

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "%-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what is missing on this machine (PostgreSQL and tools of the tests)
	@scripts/setup

build: ## Build the program: target/release/headwater
	$(CARGO) build --release --locked -p headwater

demo: ## See it work: real data, a server, three remotes, edits on both sides, conflicts
	$(CARGO) build --release --locked -p headwater -p flights
	$(TARGET)/release/flights demo

test: setup ## Run all tests, against real databases
	$(WITHIN) $(BUDGET_BUILD) $(CARGO) build --locked --workspace --all-targets
	$(WITHIN) $(BUDGET_UNIT) $(CARGO) test --locked --workspace --lib --bins --no-fail-fast
	$(WITHIN) $(BUDGET_INTEGRATION) $(CARGO) test --locked --workspace --test '*' --no-fail-fast
	$(WITHIN) $(BUDGET_DOC) $(CARGO) test --locked --workspace --doc --no-fail-fast
	$(WITHIN) $(BUDGET_FUZZ) scripts/fuzz 2

check: ## Check format, lints, documentation, licences and house rules
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps
	scripts/check-style
	scripts/check-licences
	scripts/check-self
	scripts/check-guarantees
	scripts/check-measurements
	scripts/mutants --check
	@if $(CARGO) deny --version >/dev/null 2>&1; then \
	    $(CARGO) deny --locked --all-features check bans licenses sources; \
	else \
	    echo "cargo-deny is not installed (cargo install --locked cargo-deny): bans and sources are not checked"; \
	fi

mutants: setup ## Plant the bugs of mutants/*.patch and see their tests fail (about a minute each)
	scripts/mutants

fuzz: setup ## Search for inputs that break a decoder or a parser (MINUTES=1 for each of them)
	FUZZ_PROFILE=fuzz scripts/fuzz $$((60 * $(or $(MINUTES),1)))

bench: setup ## Measure the figures of this machine against their targets (GROUP=sync, GROUP=lab, GROUP=speed, GROUP=gateway, GROUP=cursor, GROUP=idxbuild)
	$(CARGO) build --release --locked -p headwater -p headwater-bench
	$(TARGET)/release/headwater lab figures $(GROUP)

# Every test of faults, over and over: outside of CI.
torture: setup ## Break everything for HOURS=1, and count what happened
	scripts/torture $(or $(HOURS),1)
