# Thin on purpose: a target is one script or one cargo command. `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: help run build install sdk test check agent fmt clippy unit kernel soak nightly bench dist sdk-python clean-data

export PATH := $(HOME)/.cargo/bin:$(PATH)
# Set only where rustup lacks the toolchain of rust-toolchain.toml.
TOOLCHAIN := $(shell scripts/toolchain)
ifneq ($(TOOLCHAIN),)
export RUSTUP_TOOLCHAIN := $(TOOLCHAIN)
endif
ROOT := $(if $(filter 0,$(shell id -u)),,sudo)
TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
# The static agent that goes into the binary; made by scripts/build.
export ATOLL_AGENT_BINARY := $(TARGET)/agent-static/atoll-agent

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: ## Install missing packages, build, start a server and run a first sandbox
	@echo "[1/4] Debian packages that Atoll needs"
	@scripts/install-deps run
	@echo "[2/4] build: minutes the first time, seconds afterwards"
	@scripts/build release
	@echo "[3/4] install /usr/local/bin/atoll, and CRIU for pausing to disk"
	@$(ROOT) install -m 755 $(TARGET)/release/atoll /usr/local/bin/atoll
	@$(ROOT) scripts/get-criu >/dev/null || echo "run: without CRIU, pausing to disk is not possible; everything else works" >&2
	@echo "[4/4] start the server and a first sandbox"
	@exec $(ROOT) /usr/local/bin/atoll serve --tour

build: ## Build the release binary, which includes the agent
	@scripts/build release

install: build ## Put the release binary into /usr/local/bin
	@$(ROOT) install -m 755 $(TARGET)/release/atoll /usr/local/bin/atoll

sdk: sdk-python ## Build the packages of both SDKs into target/sdk
	@scripts/build-sdk-typescript

dist: ## Make the packages of a release: .deb, tarball, Dockerfile, SDKs, checksums, SBOM into target/dist
	@scripts/install-deps run
	@scripts/dist

test: ## Install missing packages and run every test, with real sandboxes
	@scripts/install-deps test
	@$(MAKE) --no-print-directory fmt clippy
	@scripts/build debug
	@scripts/test all

check: fmt clippy unit ## Run the checks that every change must pass: format, lints, crate dependencies, unit tests

agent:
	@scripts/build agent

fmt:
	@cargo fmt --all --check

clippy: agent
	@cargo clippy --quiet --workspace --all-targets --locked -- -D warnings

unit: agent ## Run the tests that need no real sandboxes
	@scripts/test unit

kernel: ## Run only the suites with real servers and real sandboxes
	@scripts/build debug
	@scripts/test kernel

soak: ## Run random operations and compare with a model, for SOAK_S seconds (600) or SOAK_CYCLES steps, random seed SOAK_SEED
	@scripts/install-deps test
	@scripts/build release
	@scripts/test soak

nightly: ## Run the long tests: a soak of 100,000 cycles, old kernels, random input for parsers, the vendors' newest SDKs (an hour)
	@$(ROOT) scripts/nightly

bench: ## Run the benchmarks and write bench/RESULTS.md (QUICK=1: the main figures in a minute, nothing is written)
	@scripts/install-deps bench
	@$(ROOT) scripts/get-criu >/dev/null
	@scripts/build release
	@cargo build --release --quiet --locked -p atoll-bench
	@$(ROOT) $(TARGET)/release/atoll-bench --atoll $(TARGET)/release/atoll --soak $(TARGET)/soak.json $(if $(QUICK),--quick)

sdk-python: ## Build the wheel of the Python SDK into target/sdk
	@$$(scripts/get-python-sdk-deps python) -m pip --disable-pip-version-check --quiet wheel --no-deps --no-build-isolation -w $(TARGET)/sdk sdk/python
	@ls $(TARGET)/sdk/*.whl

clean-data: ## Delete every sandbox, stop the server and remove all its data (FORCE=1: do not ask)
	@$(ROOT) $(TARGET)/release/atoll server uninstall $(if $(FORCE),--force)
