# farpage: every command a person or CI needs. `make help` lists them.
ROOT := $(CURDIR)
PYTHON ?= $(if $(wildcard /usr/bin/python3),/usr/bin/python3,python3)
CARGO ?= cargo
FARPAGE := $(ROOT)/target/release/farpage
PRELOAD := $(ROOT)/target/release/libfarpage_preload.so
# Without symbols: the library lies in memory, whole, in every tree.
EMBEDDED := $(ROOT)/target/release/embedded/libfarpage_preload.so
# jemalloc is compiled once, for the release; the other builds link that one (its configure takes minutes on a slow machine).
JEMALLOC = $(shell ls -t $(ROOT)/target/release/build/tikv-jemalloc-sys-*/out/lib/libjemalloc_pic.a 2>/dev/null | head -1)
KILL := --profile kill --features kill-points --target-dir $(ROOT)/target/kill
export CARGO_TARGET_DIR := $(ROOT)/target
export PYTHONDONTWRITEBYTECODE := 1

.DEFAULT_GOAL := help
.PHONY: help build kill-build deps programs demo test soak loom fuzz miri tsan nightly bench bench-core bench-zpool bench-fit bench-kernel traces flame lint check format clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

build: ## target/release/farpage, which carries the preload library
	$(CARGO) build --release -p farpage-preload
	@$(MAKE) --no-print-directory $(EMBEDDED)
	FARPAGE_PRELOAD_SO=$(EMBEDDED) $(CARGO) build --release -p farpage-cli

$(EMBEDDED): $(PRELOAD)
	@mkdir -p $(dir $@)
	objcopy --strip-all $< $@

kill-build: build ## the same with points at which processes kill themselves (see crates/farpage-core/src/kill.rs)
	JEMALLOC_OVERRIDE=$(JEMALLOC) $(CARGO) build $(KILL) -p farpage-preload
	FARPAGE_PRELOAD_SO=$(ROOT)/target/kill/kill/libfarpage_preload.so $(CARGO) build $(KILL) -p farpage-cli

deps: ## packages the demo and the tests use (apt-get when root), NumPy in .venv
	@sh tests/real/deps.sh $(PYTHON)

programs: ## the C test programs, in build/tests
	$(MAKE) --no-print-directory -C tests/programs OUT=$(ROOT)/build/tests

demo: deps build ## sort 1.5 GB of NumPy data in a 384 MB budget
	@FARPAGE_BIN=$(FARPAGE) sh demo/demo.sh

test: deps build kill-build ## unit tests, then real programs at 3 to 5 times their budget (10 to 25 minutes)
	@JEMALLOC_OVERRIDE=$(JEMALLOC) $(PYTHON) tests/real/all.py

# What takes longest first: then the lines end at about the same time.
FIRST := kill-points xz-9 pauses huge-sizes stress- swapoff-stress kill-
soak: deps build kill-build programs ## the same programs, larger, and beside them the stress program and what make test has no time for (1.5 to 2.5 hours)
	@FARPAGE_BIN=$(FARPAGE) $(PYTHON) tests/real/run.py --suite soak --lines 4 $(FIRST:%=--first %) --json build/soak.json

loom: ## every interleaving of the swap core's shared words, within bounds (a minute, and the build)
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=$(CARGO_TARGET_DIR)/loom $(CARGO) test --release -p farpage-core --lib models

# What needs the nightly toolchain gets its parts by itself.
nightly:
	@rustup toolchain list | grep -q ^nightly || rustup toolchain install nightly --profile minimal
	@rustup component add --toolchain nightly miri rust-src

FUZZ_SECONDS ?= 20
FUZZ_TOOL := $(ROOT)/target/fuzz-tool
fuzz: export PATH := $(FUZZ_TOOL)/bin:$(PATH)
fuzz: nightly ## structures beside their naive models, FUZZ_SECONDS each (nightly; installs cargo-fuzz into target)
	@test -x $(FUZZ_TOOL)/bin/cargo-fuzz || $(CARGO) install --quiet cargo-fuzz --root $(FUZZ_TOOL)
	@for target in slots zpool range_map readahead bit_tree fifo slot_cache reclaim_policy workingset; do \
	  CARGO_TARGET_DIR=$(CARGO_TARGET_DIR)/fuzz $(CARGO) +nightly fuzz run --sanitizer none $$target -- -max_total_time=$(FUZZ_SECONDS) || exit 1; \
	done

miri: nightly ## undefined behaviour in the pure parts (nightly)
	MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=2 CARGO_TARGET_DIR=$(CARGO_TARGET_DIR)/miri \
	  $(CARGO) +nightly miri test -p farpage-core --lib -- $(MIRI) $(MIRI_NOT:%=--skip %)
# Without what repeats things often: property tests, those where threads meet, and those that take minutes when interpreted
# (nearly all that fill a table of streams).
MIRI := bit_tree:: cluster::tests devices:: fifo:: huge:: page_state:: planes:: range_map:: readahead::adaptive::columns \
  readahead::adaptive::stream readahead::cluster readahead::hits readahead::size readahead::tests readahead::vma reclaim_policy:: \
  slot_cache:: slots::tests::only stats:: swap_table:: units:: workingset:: zpool::
MIRI_NOT := follows_the_model sparse_touchers_never_walk planes_are_those any_counts_are_answered

tsan: nightly ## data races in the stress tests of slots and zpool (nightly)
	RUSTFLAGS=-Zsanitizer=thread CARGO_PROFILE_DEV_PANIC=unwind CARGO_TARGET_DIR=$(CARGO_TARGET_DIR)/tsan \
	  $(CARGO) +nightly test -Zbuild-std --target x86_64-unknown-linux-gnu -p farpage-core --lib --test zpool thread

bench-core: ## instructions and time per operation of slots and swap table beside what they replaced (valgrind)
	@sh tests/real/deps.sh $(PYTHON) valgrind valgrind
	@$(PYTHON) tests/bench/core.py $(BENCH)

bench-zpool: ## time per object of the compressed tier's pool, without a codec
	$(CARGO) bench -p farpage-core --bench zpool

COMMIT = commit $(shell git rev-parse --short HEAD)$(shell git diff --quiet HEAD -- crates || echo ', changed')
bench: build ## farpage against the kernel's own swap, small and of everything; writes docs/performance.md (about 3 minutes; root)
	@mkdir -p build
	$(FARPAGE) bench --json build/bench.json --html build/bench.html --markdown docs/performance.md --build "$(COMMIT)" $(BENCH_ARGS)

bench-fit: deps build ## cost for programs that fit in their budget, in pairs; FIT="--eager": managed from their start
	@FARPAGE_BIN=$(FARPAGE) $(PYTHON) tests/bench/fit.py $(FIT)

bench-kernel: deps build ## several times the budget: farpage against the kernel's swap file, PAIRS=5 pairs (root)
	@FARPAGE_BIN=$(FARPAGE) $(PYTHON) tests/bench/against_kernel.py $(PAIRS:%=--pairs %)

traces: deps build ## page touches of real programs, for `farpage sim reclaim build/traces/*.trace` (root, perf)
	@FARPAGE_BIN=$(FARPAGE) $(PYTHON) tests/bench/record.py $(TRACES)

FLAME := $(ROOT)/target/flame
flame: build ## docs/flame-*.svg: where the CPUs' time goes, by program (perf; installs inferno into target)
	@sh tests/real/deps.sh $(PYTHON) linux-perf perf
	@test -x $(FLAME)/bin/inferno-flamegraph || $(CARGO) install --quiet inferno --root $(FLAME)
	JEMALLOC_OVERRIDE=$(JEMALLOC) RUSTFLAGS="-C force-frame-pointers=yes" $(CARGO) build --release --target-dir $(FLAME) -p farpage-preload
	FARPAGE_PRELOAD_SO=$(FLAME)/release/libfarpage_preload.so JEMALLOC_OVERRIDE=$(JEMALLOC) \
	  $(CARGO) build --release --target-dir $(FLAME) -p farpage-cli
	@$(PYTHON) tests/bench/flame.py --farpage $(FLAME)/release/farpage --library $(FLAME)/release/libfarpage_preload.so \
	  --draw $(FLAME)/bin/inferno-flamegraph --out docs $(GRAPH:%=--only %)

lint: format build check ## format and lints, warnings denied
	JEMALLOC_OVERRIDE=$(JEMALLOC) $(CARGO) clippy --workspace --all-targets -- -D warnings

# A place of its own for libFuzzer spares compiling it: nothing is linked here.
check: ## whether what no test builds still compiles: microbench/, fuzz/ (stable is enough for that), the core's loom models
	CARGO_TARGET_DIR=$(CARGO_TARGET_DIR)/check $(CARGO) check --quiet --locked --all-targets --manifest-path microbench/Cargo.toml
	CUSTOM_LIBFUZZER_PATH=/dev/null CARGO_TARGET_DIR=$(CARGO_TARGET_DIR)/check $(CARGO) check --quiet --locked --bins --manifest-path fuzz/Cargo.toml
	RUSTFLAGS="--cfg loom -D warnings" CARGO_TARGET_DIR=$(CARGO_TARGET_DIR)/loom $(CARGO) check --quiet --locked -p farpage-core --lib --tests

format: ## whether all is formatted
	$(CARGO) fmt --all --check

clean: ## remove what was built (and .venv)
	$(CARGO) clean
	rm -rf build .venv
