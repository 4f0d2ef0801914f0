# The single entry point: every developer task and every CI job is a target of this file.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
# The black-box tests wait more than they compute.
TEST_THREADS ?= 4
FUZZ_SECONDS ?= 60
# Which kernels `make test-kernels` boots: 6.1, 6.12, or both.
KERNELS ?=
# Where `make install` installs, with the variables of the GNU coding standards; DESTDIR is prepended to every path.
PREFIX ?= /usr/local
SYSCONFDIR ?= /etc
# The build that is installed.
RELEASE ?= $(TARGET)/dist
# The architectures of `make static`.
STATIC ?= x86_64 aarch64
# What `make test-static` runs: a filter of the tests' names, all by default.
TESTS ?=
ZIG := $(TARGET)/tools/zig
# The competitor of `peername jail`: HTTPJAIL=PATH compares another build.
HTTPJAIL ?= $(TARGET)/bench-jail/target/release/httpjail
CYCLONEDX := $(TARGET)/tools/cyclonedx/bin/cargo-cyclonedx
MDBOOK := $(TARGET)/tools/mdbook/bin/mdbook
WHEEL := $(TARGET)/tools/wheel
# The program that writes completions and manual pages for `make install`: another one for a RELEASE of another architecture.
GENERATOR ?= $(RELEASE)/peername
# A secret key of minisign(1), with which `make dist` signs the checksums.
SIGN ?=

.PHONY: help build setup demo docs recordings libraries test test-static check static bpf bench figures bench-exec bench-intercept competitors bench-jail bench-jail-bypasses fuzz release install uninstall dist committed archive wheel sbom test-reproducible packages test-packages image test-containers test-kernels clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install the programs that the tests need: balancers, servers, network tools (root, Debian)
	@tests/setup.sh

demo: ## Show what peername does: the client that a backend sees, without and with it
	@$(CARGO) run --locked --package peername -- demo

docs: $(MDBOOK) ## Build the pages and the help of all commands as a book with a search, in target/book
	$(CARGO) build --locked --package peername
	packaging/book.sh $(MDBOOK) $(TARGET)/book $(TARGET)/debug/peername

recordings: ## Record terminal sessions for the tutorials, as docs/demo.svg and docs/jail.svg (curl, dig)
	@[[ -x $(TARGET)/tools/rich/bin/python ]] || python3 -m venv $(TARGET)/tools/rich
	@$(TARGET)/tools/rich/bin/pip install --quiet rich==15.0.0
	$(CARGO) build --locked --package peername
	$(TARGET)/tools/rich/bin/python packaging/recordings.py $(TARGET)/debug/peername

build: ## Build the program and the libraries of `exec` for every day, in target/release
	$(CARGO) build --release --locked --package peername
	$(call PRELOAD,release)

libraries: ## Build the libraries that `peername exec` preloads, and copy them next to the debug binary
	$(call PRELOAD,debug)

test: setup ## Run all tests; needs root for network namespaces
	@[[ $$(id -u) -eq 0 ]] || { echo "make test: the tests build network namespaces: run as root" >&2; exit 1; }
	@tests/run.sh $(TEST_THREADS)

test-static: setup ## Run the black-box tests with the static binary of this machine; TESTS=exec:: for some
	@$(MAKE) --no-print-directory static STATIC=$$(uname -m)
	PEERNAME_TEST_BINARY=$(abspath $(TARGET))/$$(uname -m)-unknown-linux-musl/dist/peername \
		$(CARGO) test --locked --package peername --test e2e -- --test-threads $(TEST_THREADS) $(TESTS)

test-kernels: setup ## Boot Debian's kernels under QEMU, test each feature in them, write docs/kernels.md
	@DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --quiet --no-install-recommends \
		qemu-system-x86 busybox-static cpio kmod xz-utils
	@tests/kernels/run.py $(KERNELS)

check: ## Check formatting, lints, documentation, licences, file lengths
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	@for target in $$(rustup target list --installed 2>/dev/null | grep musl); do \
		RUSTFLAGS="-D warnings" $(CARGO) check --quiet --locked --package peername-sys --target $$target; \
	done
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --document-private-items --locked --quiet
	@if $(CARGO) deny --version >/dev/null 2>&1; then \
		$(CARGO) deny --locked --log-level error check bans licenses sources; \
		if $(CARGO) deny --locked fetch db >/dev/null 2>&1; then \
			$(CARGO) deny --locked --log-level error check --disable-fetch advisories; \
		else \
			echo "check: the advisory database can't be fetched: advisories not checked"; \
		fi; \
	else \
		echo "check: cargo-deny is not installed (cargo install --locked cargo-deny): licences not checked"; \
	fi
	@if $(CARGO) +nightly --version >/dev/null 2>&1; then \
		$(CARGO) +nightly check --locked --quiet --manifest-path fuzz/Cargo.toml; \
	else \
		echo "check: no nightly compiler: the fuzz targets are not compiled"; \
	fi
	@git ls-files '*.rs' '*.c' '*.h' | xargs wc -l | awk '$$2 != "total" && $$1 > $(MAX_FILE_LINES) { \
		print "check: " $$2 " has " $$1 " lines, more than $(MAX_FILE_LINES): does it hold one idea?"; bad = 1 } \
		END { exit bad }'
	@if command -v actionlint >/dev/null; then \
		actionlint; \
	else \
		echo "check: actionlint is not installed: .github/workflows is not checked"; \
	fi
	@checks/module_cycles.py $(CRATES)
	@checks/words.py
	@checks/markdown.py
	@checks/bpf_object.sh --check

bpf: ## Compile the eBPF program; its object is kept in the repository (clang 14)
	checks/bpf_object.sh

bench: ## Compare with no proxy, HAProxy and nginx; results in bench/out
	$(CARGO) build --profile dist --locked --package peername --package peername-bench
	$(TARGET)/dist/peername-bench matrix --peername $(TARGET)/dist/peername

bench-intercept: competitors ## Compare `peername intercept` with goproxy and hudsucker; results in bench/out
	$(CARGO) build --profile dist --locked --package peername --package peername-bench
	$(TARGET)/dist/peername-bench intercept --peername $(TARGET)/dist/peername \
		--goproxy $(TARGET)/bench-intercept/goproxy \
		--hudsucker $(TARGET)/bench-intercept/hudsucker/release/bench-hudsucker

competitors: ## Build the competitors of bench-intercept: a Go module and a crate, each with its lock file
	cd bench/intercept/goproxy && go build -trimpath -o $(abspath $(TARGET))/bench-intercept/goproxy .
	$(CARGO) build --release --locked --manifest-path bench/intercept/hudsucker/Cargo.toml \
		--target-dir $(TARGET)/bench-intercept/hudsucker

bench-jail: $(HTTPJAIL) ## Compare `peername jail` with httpjail: start, requests, memory (root); results in bench/out
	$(CARGO) build --profile dist --locked --package peername --package peername-bench
	$(TARGET)/dist/peername-bench jail --peername $(TARGET)/dist/peername --httpjail $(HTTPJAIL)

bench-jail-bypasses: $(HTTPJAIL) ## Try the attempts of docs/jail-attempts.md in httpjail (root)
	HTTPJAIL=$(abspath $(HTTPJAIL)) $(CARGO) test --locked --package peername --test e2e -- \
		--ignored --nocapture --exact jail::bypasses::httpjail::attempts_in_httpjail

$(TARGET)/bench-jail/target/release/httpjail: bench/jail/build-httpjail.sh bench/jail/httpjail.patch
	bench/jail/build-httpjail.sh $(TARGET)/bench-jail

# mmproxy-rs takes part where MMPROXY names it (`cargo install mmproxy`).
figures: ## Measure what a connection and an echo cost, and draw the chart of README (docs/figures.svg)
	$(CARGO) build --profile dist --locked --package peername --package peername-bench
	$(TARGET)/dist/peername-bench matrix --peername $(TARGET)/dist/peername --only pingpong,bulk-1,churn \
		--without direct,observed --chart docs/figures.svg \
		$(if $(MMPROXY),--proxy 'mmproxy-rs=$(MMPROXY) -l {listen} -4 {backend}')

bench-exec: ## Compare the modes of `peername exec` with a plain server and `peername proxy`
	$(CARGO) build --profile dist --locked --package peername --package peername-bench
	$(call PRELOAD,dist)
	$(TARGET)/dist/peername-bench matrix --exec --only churn,pingpong,bulk-1 --for 2s \
		--peername $(TARGET)/dist/peername

fuzz: ## Fuzz the parsers of untrusted input, each target for FUZZ_SECONDS (nightly, cargo-fuzz)
	$(CARGO) run --quiet --locked --manifest-path fuzz/Cargo.toml --example seeds
	@for target in $$($(CARGO) +nightly fuzz list); do \
		echo "fuzz: $$target, $(FUZZ_SECONDS) s"; \
		$(CARGO) +nightly fuzz run $$target -- -max_total_time=$(FUZZ_SECONDS); \
	done

release: ## Build the same as it is released, in target/dist: its last link takes minutes
	$(CARGO) build --profile dist --locked --package peername
	$(call PRELOAD,dist)

static: $(ZIG)/bin/cargo-zigbuild ## Build static programs (musl), and the libraries of `exec`; STATIC="x86_64 aarch64"
	@for arch in $(STATIC); do \
		rustup target add $$arch-unknown-linux-musl $$arch-unknown-linux-gnu; \
		PATH=$(abspath $(ZIG))/bin:$$PATH; \
		$(CARGO) zigbuild --profile dist --locked --package peername --target $$arch-unknown-linux-musl; \
		$(CARGO) zigbuild --profile dist --locked $(LIBRARY_PACKAGES) --target $$arch-unknown-linux-gnu; \
		into=$(TARGET)/$$arch-unknown-linux-musl/dist; \
		from=$(TARGET)/$$arch-unknown-linux-gnu/dist; \
		install -m 755 $$from/libpeername_preload.so $$into/libpeername.so; \
		install -m 755 $$from/libpeername_preload_connect.so $$into/libpeername_connect.so; \
	done

# A C compiler for each architecture with musl's headers, and the cargo command that uses it.
$(ZIG)/bin/cargo-zigbuild:
	python3 -m venv $(ZIG)
	$(ZIG)/bin/pip install --quiet cargo-zigbuild==0.24.1 ziglang==0.17.1

install: ## Install program, libraries, units, documentation; PREFIX=/usr/local, DESTDIR= (after make release)
	@[[ -x $(RELEASE)/peername ]] || { echo "make install: nothing is built in $(RELEASE): run make release first; what make build has built is installed by make install RELEASE=$(TARGET)/release" >&2; exit 1; }
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/bin $(RELEASE)/peername
	@for library in $(LIBRARIES); do \
		install -D -m 755 -t $(DESTDIR)$(PREFIX)/lib/peername $(RELEASE)/$$library; \
		ln -sf $$library $(DESTDIR)$(PREFIX)/lib/peername/$${library/peername/proxyproto}; \
	done
	@for unit in packaging/systemd/*; do \
		install -D -m 644 -t $(DESTDIR)$(UNITS) $$unit; \
		sed -i 's|/usr/bin/peername|$(PREFIX)/bin/peername|; s|file:///usr/share|file://$(PREFIX)/share|' \
			$(DESTDIR)$(UNITS)/$${unit##*/}; \
	done
	install -D -m 644 -t $(DESTDIR)$(DOCUMENTATION) README.md CHANGELOG.md SECURITY.md CONTRIBUTING.md ARCHITECTURE.md LICENSE-APACHE LICENSE-MIT
	install -D -m 644 -t $(DESTDIR)$(DOCUMENTATION)/bench bench/README.md
	install -D -m 644 -t $(DESTDIR)$(DOCUMENTATION)/docs docs/*
	@for kind in prometheus grafana fail2ban/action.d; do \
		install -D -m 644 -t $(DESTDIR)$(DOCUMENTATION)/$$kind packaging/$$kind/*; \
	done
	install -d $(DESTDIR)$(dir $(BASH_COMPLETION)) $(DESTDIR)$(dir $(ZSH_COMPLETION)) $(DESTDIR)$(dir $(FISH_COMPLETION))
	$(GENERATOR) completions bash >$(DESTDIR)$(BASH_COMPLETION)
	$(GENERATOR) completions zsh >$(DESTDIR)$(ZSH_COMPLETION)
	$(GENERATOR) completions fish >$(DESTDIR)$(FISH_COMPLETION)
	install -D -m 644 -t $(DESTDIR)$(SYSCONFDIR)/apparmor.d packaging/apparmor/peername-service
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/peername/apparmor packaging/apparmor/peername
	install -m 755 -t $(DESTDIR)$(PREFIX)/share/peername/apparmor packaging/apparmor/load.sh
	install -d $(DESTDIR)$(MANUAL)
	$(GENERATOR) man $(DESTDIR)$(MANUAL)
	@for file in proxy.toml forward.toml intercept.toml agent.toml allowed-subnets.txt; do \
		[[ -e $(DESTDIR)$(SYSCONFDIR)/peername/$$file ]] || \
			install -D -m 644 -t $(DESTDIR)$(SYSCONFDIR)/peername packaging/examples/$$file; \
	done

uninstall: ## Remove what install has installed, except the configuration
	rm -f $(DESTDIR)$(PREFIX)/bin/peername $(DESTDIR)$(MANUAL)/peername{,-*}.1{,.gz} $(DESTDIR)$(BASH_COMPLETION) $(DESTDIR)$(ZSH_COMPLETION) $(DESTDIR)$(FISH_COMPLETION)
	rm -f $(patsubst packaging/systemd/%,$(DESTDIR)$(UNITS)/%,$(wildcard packaging/systemd/*))
	rm -rf $(DESTDIR)$(PREFIX)/lib/peername $(DESTDIR)$(PREFIX)/share/peername $(DESTDIR)$(DOCUMENTATION) \
		$(DESTDIR)$(SYSCONFDIR)/apparmor.d/peername-service

UNITS := $(PREFIX)/lib/systemd/system
DOCUMENTATION := $(PREFIX)/share/doc/peername
MANUAL := $(PREFIX)/share/man/man1
BASH_COMPLETION := $(PREFIX)/share/bash-completion/completions/peername
ZSH_COMPLETION := $(PREFIX)/share/zsh/site-functions/_peername
FISH_COMPLETION := $(PREFIX)/share/fish/vendor_completions.d/peername.fish

dist: committed static ## Make a whole release in dist/ of static programs; STATIC=x86_64 for one, SIGN=KEY signs it (minisign)
	rm -rf dist
	@$(MAKE) --no-print-directory sbom
	@for arch in $(STATIC); do \
		$(MAKE) --no-print-directory archive packages wheel RELEASE=$(TARGET)/$$arch-unknown-linux-musl/dist \
			GENERATOR=$(TARGET)/$(shell uname -m)-unknown-linux-musl/dist/peername; \
	done
	@$(MAKE) --no-print-directory image STATIC_BINARIES="$(STATIC:%=$(TARGET)/%-unknown-linux-musl/dist/peername)"
	install -m 755 -t dist packaging/install.sh
	STATIC="$(STATIC)" packaging/provenance.py dist >dist/provenance.json
	packaging/checksums.sh dist $(if $(SIGN),$(abspath $(SIGN)))

# What a release needs is known before the build of minutes; what it says of its commit has to be true.
committed:
	@for tool in buildah dpkg-deb rpmbuild; do \
		command -v $$tool >/dev/null || { echo "make dist: $$tool is missing (docs/install.md#make-a-release)" >&2; exit 1; }; \
	done
	@[[ -z $$(git status --porcelain --untracked-files=no) ]] || { echo "make dist: commit first" >&2; exit 1; }

archive: ## Build an archive in dist/ from the program in RELEASE: libraries, completions, documentation, units, SBOM
	packaging/archive.sh $(RELEASE) dist

wheel: $(WHEEL)/bin/wheel ## Build a Python wheel in dist/ from the static program in RELEASE, for uvx and pipx
	packaging/python/build.sh $(RELEASE) dist $(WHEEL)/bin/python

$(WHEEL)/bin/wheel:
	python3 -m venv $(WHEEL)
	$(WHEEL)/bin/pip install --quiet wheel==0.48.0

sbom: $(CYCLONEDX) ## Write dist/peername.cdx.json, the crates that the program consists of (CycloneDX)
	packaging/sbom.sh $(CYCLONEDX) dist/peername.cdx.json

$(CYCLONEDX):
	$(CARGO) install --quiet --locked --version 0.5.9 --root $(TARGET)/tools/cyclonedx cargo-cyclonedx

$(MDBOOK):
	$(CARGO) install --quiet --locked --version 0.5.4 --no-default-features --features search --root $(TARGET)/tools/mdbook mdbook

test-reproducible: ## Build the last commit in another folder, and compare it with what make static has built
	packaging/reproducible.sh $(TARGET)/$$(uname -m)-unknown-linux-musl/dist $(ZIG)

packages: ## Build deb and rpm in dist/ from the program in RELEASE (Debian: dpkg-dev, rpm)
	packaging/package/build.sh $(RELEASE) dist

test-packages: ## Install what make dist has built in fresh root file systems, and on a booted Debian (root)
	@[[ -e dist/provenance.json ]] || { echo "make test-packages: there is no release yet: run make dist" >&2; exit 1; }
	@DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --quiet --no-install-recommends \
		busybox-static debootstrap lintian minisign systemd-container
	@tests/packages/release.sh dist
	@tests/packages/roots.sh dist
	@tests/packages/booted.sh dist

image: ## Build dist/peername.oci.tar, the container image of the static binaries (root, buildah; after make static)
	@[[ -n "$(STATIC_BINARIES)" ]] || { echo "make image: there is no static binary yet: run make static" >&2; exit 1; }
	packaging/oci/build.sh dist/peername.oci.tar $(STATIC_BINARIES)

test-containers: ## Test the image, the chart and the manifests, with podman (root; after make static)
	@tests/containers/setup.sh
	tests/containers/manifests.sh
	$(MAKE) --no-print-directory image
	tests/containers/image.sh dist/peername.oci.tar $(STATIC_BINARIES)
	tests/containers/chart.sh dist/peername.oci.tar
	tests/containers/agent.sh $(TARGET)/$(shell uname -m)-unknown-linux-musl/dist/peername

clean: ## Remove build results
	$(CARGO) clean
	rm -rf dist

# The platforms of the image: what make static has built.
STATIC_BINARIES ?= $(wildcard $(TARGET)/*-unknown-linux-musl/dist/peername)

# What is released holds no path of the machine that built it, so that the same sources make the same files anywhere.
# Of two prefixes that match, the last one counts. The benchmarks measure what `make release` has built.
PATHS := $(CURDIR)=/usr/src/peername $(or $(CARGO_HOME),$(HOME)/.cargo)=/usr/src/cargo $(abspath $(TARGET))=/usr/src/target
release static bench bench-exec bench-intercept bench-jail: export RUSTFLAGS += $(PATHS:%=--remap-path-prefix=%)
release static bench bench-exec bench-intercept bench-jail: export CFLAGS += $(PATHS:%=-ffile-prefix-map=%)

# Every package of the workspace that has modules.
CRATES := $(patsubst %/src/lib.rs,%,$(patsubst %/src/main.rs,%,$(wildcard crates/*/src/lib.rs crates/*/src/main.rs \
	crates/preload/*/src/lib.rs bench/src/main.rs)))

# In a build of its own, so that no other package enables the standard library in its dependencies.
LIBRARY_PACKAGES := --package peername-preload --package peername-preload-connect --features freestanding
# Its argument is the folder to copy them to. They are small, and only whole-program optimisation removes their panics.
define PRELOAD
$(CARGO) build --profile dist --locked $(LIBRARY_PACKAGES)
@mkdir -p $(TARGET)/$1 && install -m 755 $(TARGET)/dist/libpeername_preload.so $(TARGET)/$1/libpeername.so && \
	install -m 755 $(TARGET)/dist/libpeername_preload_connect.so $(TARGET)/$1/libpeername_connect.so
endef
LIBRARIES := libpeername.so libpeername_connect.so

# The maximum number of lines of a source file, tests included. A longer one holds more than one idea.
MAX_FILE_LINES := 450
