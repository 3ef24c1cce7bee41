# farpage: every command a person or CI needs. `make help` lists them.
ROOT := $(CURDIR)
PYTHON ?= $(if $(wildcard /usr/bin/python3),/usr/bin/python3,python3)
CARGO ?= cargo
FARPAGE := $(ROOT)/target/release/farpage
PRELOAD := $(ROOT)/target/release/libfarpage_preload.so
# Without debug information: the library lies in memory, whole, in every tree.
EMBEDDED := $(ROOT)/target/release/embedded/libfarpage_preload.so
KILL := --profile kill --features kill-points --target-dir $(ROOT)/target/kill
export CARGO_TARGET_DIR := $(ROOT)/target
export PYTHONDONTWRITEBYTECODE := 1

.DEFAULT_GOAL := help
.PHONY: help build kill-build deps programs demo test soak loom bench-fit bench-kernel lint clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

build: ## target/release/farpage, which carries the preload library
	$(CARGO) build --release -p farpage-preload
	@$(MAKE) --no-print-directory $(EMBEDDED)
	FARPAGE_PRELOAD_SO=$(EMBEDDED) $(CARGO) build --release -p farpage-cli

$(EMBEDDED): $(PRELOAD)
	@mkdir -p $(dir $@)
	objcopy --strip-debug $< $@

kill-build: $(EMBEDDED) ## the same with points at which processes kill themselves (see crates/farpage-core/src/kill.rs)
	JEMALLOC_OVERRIDE=$$(ls -t $(ROOT)/target/release/build/tikv-jemalloc-sys-*/out/lib/libjemalloc_pic.a | head -1) \
		$(CARGO) build $(KILL) -p farpage-preload
	FARPAGE_PRELOAD_SO=$(ROOT)/target/kill/kill/libfarpage_preload.so $(CARGO) build $(KILL) -p farpage-cli

deps: ## packages the demo and the tests use (apt-get when root), NumPy in .venv
	@sh tests/real/deps.sh $(PYTHON)

programs: ## the C test programs, in build/tests
	$(MAKE) --no-print-directory -C tests/programs OUT=$(ROOT)/build/tests

demo: deps build ## sort 1.5 GB of NumPy data in a 384 MB budget
	@FARPAGE_BIN=$(FARPAGE) sh demo/demo.sh

test: deps build kill-build ## unit tests, then real programs at 3 to 5 times their budget (about 18 minutes)
	@$(PYTHON) tests/real/all.py

soak: deps build kill-build programs ## the same programs, larger, and the stress program for an hour
	@FARPAGE_BIN=$(FARPAGE) $(PYTHON) tests/real/run.py --suite soak

loom: ## every interleaving of the swap core's shared words, within bounds (about a minute)
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=$(CARGO_TARGET_DIR)/loom $(CARGO) test --release -p farpage-core --lib models

bench-fit: deps build ## cost for programs that fit in their budget, in pairs
	@FARPAGE_BIN=$(FARPAGE) $(PYTHON) tests/bench/fit.py

bench-kernel: deps build ## several times the budget: farpage against the kernel's swap file, in pairs (root)
	@FARPAGE_BIN=$(FARPAGE) $(PYTHON) tests/bench/against_kernel.py

lint: ## format and lints, warnings denied
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

clean: ## remove what was built (and .venv)
	$(CARGO) clean
	rm -rf build .venv
