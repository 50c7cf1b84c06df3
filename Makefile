# Targets that people and CI use. `make demo`, `make demo-director`, `make demo-clusters` and `make test` install what they need.

SHELL := /bin/bash
.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

.PHONY: setup
setup: ## Install the needs of demo and tests (as root; quick when all is installed)
	@e2e/lanes/setup

.PHONY: build
build: ## Build both programs, optimised
	PORTOLAN_REVISION=$$(git rev-parse --short=12 HEAD 2>/dev/null) \
	cargo build --release -p portolan-controller -p portolan-ctl -p portolan-agent

.PHONY: deb
deb: ## Build the Debian package of the agent into target/debian, and check it in a fresh root (as root)
	deb=$$(agent/debian/build | tail -n 1) && e2e/package/check "$$deb"

.PHONY: demo
demo: ## Show the main job: two nodes, a controller, two agents, two Services; DATAPLANE=ipvs or nftables
	@e2e/lanes/setup --tools && e2e/demo

.PHONY: demo-director
demo-director: ## Show the agent alone: a file becomes a load balancer, a real server dies, requests follow
	@e2e/lanes/setup --tools && e2e/demo director

.PHONY: demo-clusters
demo-clusters: ## Show a Service of three clusters: shares, the loss of a cluster, its return
	@e2e/lanes/setup --tools && e2e/demo clusters

.PHONY: test
test: setup ## Run the tests in all lanes; CI=true forbids skipping
	@e2e/test

.PHONY: browser
browser: ## Install the browser that the long tests look at the status page with (as root)
	@e2e/lanes/setup --browser

.PHONY: neighbours
neighbours: ## Install the firewalls that the long tests run beside the agent (as root)
	@e2e/lanes/setup --neighbours

.PHONY: test-all
test-all: setup browser neighbours ## Run the long tests too: kube-proxy side by side, long chaos, all of 6.12, the package, soak
	@e2e/test --all

.PHONY: soak
soak: setup ## Run the soak test alone, PORTOLAN_SOAK_SECONDS long (default 1800)
	@e2e/test --only soak

.PHONY: chart
chart: ## Check the Helm chart (the first time builds Helm and the programs that check)
	@charts/ci/check

.PHONY: chart-update
chart-update: ## Write the schema, the table of values and the expected manifests of the chart anew
	@charts/ci/update

.PHONY: alerts
alerts: ## Check the alerts of the chart with promtool (the first time builds it)
	@charts/ci/alerts

.PHONY: conformance-e2e
conformance-e2e: setup ## Run Kubernetes' own specs of networks on real kubelets; FOCUS=, SKIP=, NODES= and PROXY= choose others
	@PROXY='$(PROXY)' FOCUS='$(value FOCUS)' SKIP='$(value SKIP)' e2e/conformance-e2e

.PHONY: conformance-mcs
conformance-mcs: setup ## Run the conformance suite of the MCS API on real kubelets; SUITE= names its program, built elsewhere
	@FAMILIES='$(FAMILIES)' DATAPLANE='$(DATAPLANE)' FOCUS='$(value FOCUS)' e2e/conformance-mcs '$(SUITE)'

.PHONY: fuzz
fuzz: ## Fuzz decoders, parsers and importers, 15 s each target; e2e/fuzz/run SECONDS for longer
	@e2e/fuzz/run

.PHONY: bench-stream
bench-stream: ## Measure the stream to 5,000 agents against simple baselines (some minutes)
	cargo build --release -p portolan-bench-stream
	target/release/portolan-bench-stream run $(BENCH_FLAGS)
	cargo run --release -p portolan-select --example event_cost

.PHONY: bench-federation
bench-federation: ## Measure what clusters that share their Services cost the centre, and delays between them (some minutes)
	cargo run --release -p portolan-select --example federation_heap
	cargo run --release -p portolan-select --example federation_cost
	cargo build --release --workspace --all-features --bin portolan-controller --bin portolan-agent
	PORTOLAN_BIN_DIR=$(CURDIR)/target/release cargo test --workspace --all-features --test multicluster in_other_clusters_soon

.PHONY: bench-relay
bench-relay: ## Measure one change through two tiers of relays to 40,000 agents; PORTOLAN_RELAY_AGENTS=2000 for a short run
	cargo build --release -p portolan-bench-stream
	target/release/portolan-bench-stream relay $(BENCH_FLAGS)

.PHONY: lint
lint: ## Check format, licence lines, actions of workflows and lints
	cargo fmt --all --check
	.ci/spdx
	.ci/actions
	cargo clippy --workspace --all-targets --all-features -- -D warnings

.PHONY: deny
deny: ## Check licences, bans and sources of dependencies (the first time builds cargo-deny)
	deny=$$(.ci/cargo-tool cargo-deny) && "$$deny" --locked check --hide-inclusion-graph bans licenses sources

.PHONY: advisories
advisories: ## Check dependencies for known vulnerabilities (fetches RustSec's database from GitHub; not in CI)
	deny=$$(.ci/cargo-tool cargo-deny) && "$$deny" --locked check advisories

.PHONY: unused
unused: ## Check for unused dependencies (the first time builds cargo-machete)
	machete=$$(.ci/cargo-tool cargo-machete) && "$$machete"

.PHONY: man
man: ## Write manual pages and shell completions of all programs to target/man and target/completions
	cargo build -p portolan-controller -p portolan-ctl -p portolan-agent
	mkdir -p target/completions
	for program in portolan-agent portolan-controller portolanctl; do \
	  target/debug/$$program man target/man && \
	  for shell in bash zsh fish; do \
	    target/debug/$$program completions $$shell > target/completions/$$program.$$shell || exit 1; \
	  done || exit 1; \
	done

.PHONY: proto
proto: ## Check the protocol: lints, compatibility with the last release, generated Go code
	@.ci/proto

.PHONY: reference
reference: ## Write the references of docs/ and the test vectors anew from the code
	UPDATE_REFERENCE=1 cargo test -q --no-fail-fast --workspace --all-features --lib --bins -- reference vectors

.PHONY: docs
docs: ## Build the book of docs/ into target/book (the first time builds mdbook)
	book=$$(.ci/cargo-tool mdbook) && "$$book" build docs

.PHONY: tools
tools: ## Build the real Kubernetes programs that the server lane runs against
	@e2e/tools/build

.PHONY: images
images: IMAGES_OUT = target/images$(if $(ARCH),-$(ARCH))
images: ## Build the images of controller and agent into target/images, twice, and check them (as root); ARCH=arm64 for others
	images/build --check $(if $(ARCH),--arch $(ARCH) --out $(IMAGES_OUT))
	images/size $(IMAGES_OUT)
	images/contents $(IMAGES_OUT)
	images/sbom $(IMAGES_OUT)
	images/sbom --check $(IMAGES_OUT)
	crane=$$(e2e/tools/build crane | tail -n 1) && \
	for name in controller agent; do "$$crane/crane" validate --fast --tarball $(IMAGES_OUT)/portolan-$$name.tar || exit 1; done
	images/check-push $(IMAGES_OUT)

.PHONY: bench-agent
bench-agent: ## Measure kernel programming against its floor and other programs, in a guest
	@e2e/bench-agent

.PHONY: bench-path
bench-path: ## Measure connections through a node beside kube-proxy's modes, in a guest (long)
	@e2e/bench-path

.PHONY: bench-director
bench-director: ## Measure the agent alone beside Debian's keepalived, in a guest (about twelve minutes)
	@e2e/bench-director

.PHONY: bench-dns
bench-dns: ## Measure DNS answers beside CoreDNS's kubernetes plugin (a minute; the first time builds CoreDNS)
	cargo build --release -p portolan-bench-dns
	coredns=$$(e2e/tools/build coredns | tail -n 1) && \
	target/release/portolan-bench-dns --coredns "$$coredns/coredns" $(BENCH_FLAGS)
