# Two commands matter: `make demo` and `make test`. Both start from a fresh clone on a Linux machine with Go, git, make and apt.
SHELL := /bin/bash -o pipefail
.DEFAULT_GOAL := help

VERSION   ?= v0.1.0
PLATFORMS ?= linux/amd64 linux/arm64
REPO      := ghcr.io/cloud-map-mcs
MODULE    := github.com/cloud-map-mcs/cloud-map-mcs-controller
# The tag of the version if it is that of this commit, for URLs of the documentation: those of other commits name branch main.
TAG       := $(shell git tag --points-at HEAD --list '$(VERSION)' 2>/dev/null)
LDFLAGS   := -s -w -X $(MODULE)/internal/config.Version=$(VERSION) -X $(MODULE)/internal/docs.Tag=$(TAG)
HOST      := linux/$(shell go env GOHOSTARCH)
TOOL      := go tool -modfile=$(CURDIR)/hack/tools/go.mod

export GOTOOLCHAIN := local
# Without debugging information, which -s -w, go run and go test drop when they link: compiling takes about a tenth less processor time.
export GOFLAGS += -buildvcs=false -trimpath -gcflags=all=-dwarf=false
# make lint runs vet. With empty caches, go test would run it on each package of the dependencies too.
GOFLAGS += -vet=off
export CGO_ENABLED := 0

# NIGHTLY=1 runs the slow tests too, those that skip themselves with -short.
SHORT := $(if $(NIGHTLY),,-short)

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build the controller, kubectl-mcs, cloudmap-local and the testbed into bin/
	go build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...
	go build -C testbed -o ../bin/ ./cmd/...

.PHONY: plugin
plugin: ## Build kubectl-mcs into bin/, on Linux or macOS
	go build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/kubectl-mcs

# The real Helm, for the chart's tests and scenarios; pinned in hack/helm/go.mod (3 minutes on 2 cores the first time).
bin/helm: hack/helm/go.mod hack/helm/go.sum
	go build -C hack/helm -ldflags '-s -w' -o ../../bin/helm helm.sh/helm/v4/cmd/helm
	@touch $@

# The real promtool, for the tests of alerts and dashboard; pinned in hack/promtool/go.mod (3 minutes on 2 cores the first time).
# Without service discovery, which it does not need here and which makes half of it.
bin/promtool: hack/promtool/go.mod hack/promtool/go.sum
	go build -C hack/promtool -tags remove_all_sd -ldflags '-s -w' -o ../../bin/promtool github.com/prometheus/prometheus/cmd/promtool
	@touch $@

# The Lua interpreter of Argo CD, for the tests of its health checks; pinned in hack/lua/go.mod.
bin/glua: hack/lua/go.mod hack/lua/go.sum
	go build -C hack/lua -ldflags '-s -w' -o ../../bin/glua github.com/yuin/gopher-lua/cmd/glua
	@touch $@

# The real etcdutl, for the scenarios that restore a snapshot; pinned in hack/etcd/go.mod.
bin/etcdutl: hack/etcd/go.mod hack/etcd/go.sum
	go build -C hack/etcd -ldflags '-s -w' -o ../../bin/etcdutl go.etcd.io/etcd/etcdutl/v3
	@touch $@

# The tools of a release, pinned in a module each; CI needs none of them.
bin/crane: hack/crane/go.mod hack/crane/go.sum
	go build -C hack/crane -ldflags '-s -w' -o ../../bin/ tool
	@touch $@

bin/cosign: hack/cosign/go.mod hack/cosign/go.sum
	go build -C hack/cosign -ldflags '-s -w' -o ../../bin/ tool
	@touch $@

# syft, which checks the SBOMs of a release; pinned in hack/syft/go.mod (12 minutes on 2 busy cores the first time).
bin/syft: hack/syft/go.mod hack/syft/go.sum
	go build -C hack/syft -ldflags '-s -w' -o ../../bin/ tool
	@touch $@

# The image of etcd for the scenario of stateful services, under the name of the public one: etcd of the testbed, and etcdctl.
dist/etcd.tar: build samples/stateful/base/etcd.yaml
	@mkdir -p dist
	go build -C hack/etcd -ldflags '-s -w' -o ../../dist/etcdctl go.etcd.io/etcd/etcdctl/v3
	bin/oci-image --out $@ --ref "$$(sed -n 's/^ *image: //p' $(lastword $^))" --entrypoint /usr/local/bin/etcd \
	  --platform $(HOST)="$$(bin/testbed assets)/etcd" --file dist/etcdctl=/usr/local/bin/etcdctl

# CoreDNS 1.11.4, the newest add-on of EKS 1.30 to 1.32, for the scenario of a CoreDNS that is too old: the program of the testbed with older modules.
dist/coredns-old.tar: build testbed/programs/coredns/old.mod testbed/programs/coredns/old.sum
	@mkdir -p dist
	go build -C testbed/programs/coredns -modfile=old.mod -ldflags '-s -w' -o ../../../dist/coredns-old .
	bin/oci-image --out $@ --ref registry.k8s.io/coredns/coredns:$$(sed -n 's,^require github.com/coredns/coredns ,,p' $(word 2,$^)) \
	  --entrypoint /coredns --platform $(HOST)=dist/coredns-old

# An earlier version for the scenario of upgrades. OLD is a commit or tag whose records the present version reads. No version is published yet, so it is the
# last commit before the releases of RELEASE.md existed, which does not write the report of imports (docs/proposals/018-importers.md) into its records.
OLD ?= 41b45cb
.PHONY: dist/controller-old.tar
dist/controller-old.tar:
	hack/build-old $(OLD) $(HOST)

# The real Traefik, which implements Gateway API; pinned in hack/traefik/go.mod (7 minutes on 2 cores the first time).
bin/traefik: hack/traefik/go.mod hack/traefik/go.sum
	go build -C hack/traefik -ldflags '-s -w' -o ../../bin/traefik github.com/traefik/traefik/v3/cmd/traefik
	@touch $@

# The real Envoy Gateway, which implements Gateway API; pinned in hack/envoy-gateway/go.mod. It
# requires a newer patch of Go than this repository.
bin/envoy-gateway: hack/envoy-gateway/go.mod hack/envoy-gateway/go.sum
	GOTOOLCHAIN=auto go build -C hack/envoy-gateway -ldflags '-s -w' -o ../../bin/ tool
	@touch $@

.PHONY: demo
demo: build ## Watch the walk-through happen on two real clusters (KEEP=1 leaves them up; REGISTRY=etcd, DUAL_STACK=1, CLUSTERS=3)
	$(MAKE) --no-print-directory image PLATFORMS=$(HOST)
	go run ./test/demo $(if $(RECORD),-record $(RECORD))

.PHONY: demo-aws
demo-aws: build ## Watch services of ECS come into two real clusters, and their Services used outside of Kubernetes (KEEP=1 leaves them up)
	$(MAKE) --no-print-directory image PLATFORMS=$(HOST)
	go run ./test/demo -aws $(if $(RECORD),-record $(RECORD))

.PHONY: clusters
clusters: build ## Bring two real clusters and cloudmap-local up to work with (docs/quick-start.md); DUAL_STACK=1, CLUSTERS=3; make clean takes them down
	$(MAKE) --no-print-directory image PLATFORMS=$(HOST)
	go run ./test/demo -up

.PHONY: aws-acceptance
aws-acceptance: ## Find out how AWS Cloud Map behaves in an account, for some cents (REGION=eu-central-1; ROLE=, VPC=, SHARE=, RATES=1, YES=1, SWEEP=1, ENDPOINT=; docs/aws-behavior.md)
	@test -n "$(REGION)" || { echo "name the AWS Region: make aws-acceptance REGION=eu-central-1" >&2; exit 1; }
	go build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/cloudmap-probe
	bin/cloudmap-probe --region $(REGION) --output dist/aws-report $(if $(ROLE),--role $(ROLE)) $(if $(VPC),--vpc $(VPC)) $(if $(SHARE),--share $(SHARE)) \
	  $(if $(RATES),--rates) $(if $(YES),--yes) $(if $(SWEEP),--sweep) $(if $(ENDPOINT),--endpoint $(ENDPOINT))

.PHONY: test
test: unit model race-fast browser faults e2e ## Run every test: unit, registries, a real API server, small worlds, races, a browser, random faults, scenarios on real clusters

# The packages whose tests take minutes begin first, and test/attack beside the short ones that follow: it measures times under a flood of changes.
LONG := ./internal/controller ./internal/registry/cloudmap ./deploy ./internal/registry/etcd

# The longest packages wait for API servers, etcd and pauses part of their time: one more package runs than there are processors (-p).
.PHONY: unit
unit: build bin/helm bin/promtool bin/glua ## Run the tests that need no cluster (a real API server included)
	bin/testbed build
	KUBEBUILDER_ASSETS="$$(bin/testbed assets)" REQUIRE_ENVTEST=1 REQUIRE_HELM=1 REQUIRE_PROMTOOL=1 LUA="$(CURDIR)/bin/glua" go test $(SHORT) -p $$((1 + $$(nproc))) -parallel 16 -timeout 40m $(LONG) ./api/... ./cloudmaplocal/... ./cmd/... ./deploy/... ./hack/... ./internal/... ./test/attack ./test/bench/... ./test/clusterset ./test/demo ./test/docs ./test/fleet ./test/matrix ./test/tutorial
	cd testbed && go test -timeout 15m ./...

# On Linux and macOS, with Go alone. Left out: packages whose tests take minutes, need etcd or read /proc. Tests that need an API server skip themselves.
FAST = $$(go list ./api/... ./cloudmaplocal/... ./cmd/... ./hack/columns ./hack/docs ./hack/words ./internal/... ./test/docs | grep -vE '/internal/(controller|registry/cloudmap|registry/etcd|testprocess)$$')
.PHONY: unit-fast
unit-fast: ## Run the tests that need no cluster, API server, Helm or Linux, in minutes
	go test $(SHORT) -parallel 16 -skip '^TestBrowser' $(FAST)

# Not part of make test: it compiles everything again.
.PHONY: darwin
darwin: ## Compile what runs on macOS, on any machine: the plugin, the tests of make unit-fast, and the programs of make push
	packages="$(FAST)" && GOOS=darwin GOARCH=arm64 go vet $$packages
	GOOS=darwin GOARCH=arm64 go build -C testbed -o /dev/null ./cmd/oci-image
	GOOS=darwin GOARCH=arm64 go build -C hack/crane -o /dev/null tool

# On their own and one after the other: each uses both cores for minutes, and tests in real time beside it would wait for it.
# Each commit has seeds of its own, so every change tries new ones, and a run that fails fails again for the same commit. make soak makes more steps, at night.
FAULTS_SEED ?= $(shell echo $$((0x$$(git rev-parse --short=6 HEAD 2>/dev/null || echo 1))))
.PHONY: faults
faults: build ## Run 2,000 steps of the random fault test on each registry, with seeds of the commit (FAULTS_SEED=7 repeats those of another)
	bin/testbed build
	KUBEBUILDER_ASSETS="$$(bin/testbed assets)" REQUIRE_ENVTEST=1 FAULTS_SEED=$(FAULTS_SEED) FAULTS_STEPS=2000 FAULTS_RUNS=8 \
	  go test -count=1 -p 1 -timeout 30m ./internal/registry/etcd ./internal/registry/cloudmap -run '^TestRandomFaults$$' \
	  || { echo "make faults FAULTS_SEED=$(FAULTS_SEED) repeats these steps" >&2; exit 1; }

# States of each world, and the share of them from which convergence is checked: one of MODEL_SAMPLE.
MODEL_STATES ?= 65000
MODEL_SAMPLE ?= 16
.PHONY: model
model: ## Explore small worlds of clusters, a reader and a third party, and check the promises in each state
	MODEL_STATES=$(MODEL_STATES) MODEL_SAMPLE=$(MODEL_SAMPLE) go test -count=1 -p 1 -timeout 10h -v ./internal/registry/engine/model ./internal/registry/cloudmap/state -run '^TestModel(OfClaim)?$$'

# Not part of make test: tests take several times as long.
RACE ?= ./cmd/controller ./cloudmaplocal/... ./internal/...
.PHONY: race
race: build ## Run the unit tests with the race detector, which needs gcc (RACE=./internal/registry/engine picks packages)
	@command -v gcc >/dev/null || { echo "the race detector needs a C compiler: apt-get install gcc libc6-dev" >&2; exit 1; }
	bin/testbed build
	KUBEBUILDER_ASSETS="$$(bin/testbed assets)" REQUIRE_ENVTEST=1 CGO_ENABLED=1 go test -race $(SHORT) -parallel 16 -timeout 2h $(RACE)

# Packages that share state among goroutines and whose tests take seconds; make race has all. The race detector needs a C compiler.
.PHONY: race-fast
race-fast: ## Run the short tests of the registries with the race detector, for which it installs gcc
	command -v gcc >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends gcc libc6-dev; }
	CGO_ENABLED=1 go test -race -short -parallel 16 -timeout 15m $$(go list ./internal/registry/... | grep -vE '/(cloudmap|etcd|belief|model|registrytest|recordpb)$$')

# Debian's Chromium. Not part of the list of the testbed, whose packages every machine with clusters needs.
.PHONY: browser
browser: ## Run the tests of the page of kubectl mcs ui in Chromium, which it installs (PICTURES=1 writes those of the docs)
	command -v chromium >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends chromium; }
	REQUIRE_CHROMIUM=1 go test -count=1 ./internal/cli/ui -run '^TestBrowser' $(if $(PICTURES),-pictures)

# The scenarios that a registry makes the most difference to. make e2e REGISTRY=etcd runs all on etcd, and nightly.yml some more. Outages of etcd and
# clusters with one ID happen in make faults too, on a real etcd.
ON_ETCD := ^Test(EtcdUsers|ImportsSurvive)

# A run that ends by a time limit or a crash must leave no testbed to the next one.
DOWN := || { code=$$?; $(if $(KEEP),,$(CURDIR)/bin/testbed down;) exit $$code; }

.PHONY: e2e
e2e: build bin/helm $(if $(NIGHTLY),bin/etcdutl dist/etcd.tar dist/coredns-old.tar dist/controller-old.tar) ## Run the scenarios on real clusters (root; RUN=regexp picks some, KEEP=1 leaves them up, REGISTRY=etcd uses etcd, CLOUDMAP=--pessimistic is for cloudmap-local)
	$(MAKE) --no-print-directory image PLATFORMS=$(HOST)
	$(if $(RUN),,cd testbed && TESTBED_E2E=1 go test -count=1 -timeout 5m ./netpolicy)
	$(if $(RUN),,E2E=1 go test -count=1 -timeout 5m ./test/docs -run '^TestCloudMapLocalPage$$')
	E2E=1 E2E_CLOUDMAP='$(CLOUDMAP)' go test $(SHORT) -count=1 -timeout $(if $(NIGHTLY),90m,55m) -parallel 4 -v ./test/e2e $(if $(RUN),-run '$(RUN)') $(DOWN)
	$(if $(RUN)$(REGISTRY),,E2E=1 REGISTRY=etcd go test $(SHORT) -count=1 -timeout $(if $(NIGHTLY),90m,20m) -parallel 4 -v ./test/e2e -run '$(ON_ETCD)' $(DOWN))

# The programs of the site, pinned in hack/site/package-lock.json. None of their install scripts runs.
hack/site/node_modules: hack/site/package.json hack/site/package-lock.json
	npm --prefix hack/site ci --ignore-scripts --no-audit --no-fund
	@touch $@

# The path of the site on its server, and in dist/site.
site: export SITE_BASE ?= /
site: export SITE_VERSION := $(TAG)
.PHONY: site
site: hack/site/node_modules ## Build the site of docs/ into dist/site and check its links (needs Node.js 20 and npm; SITE_BASE=/path/ on a server)
	npm --prefix hack/site run --silent build
	npm --prefix hack/site run --silent check

.PHONY: site-test
site-test: site ## Compare the site with docs/, and open and search it in Chromium, which it installs
	command -v chromium >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends chromium; }
	REQUIRE_SITE=1 REQUIRE_CHROMIUM=1 go test -count=1 -timeout 10m ./test/docs -run '^Test(Browser_)?Site$$'

# Not part of make test: it takes three minutes, and the scenarios bring up and use the same clusters.
.PHONY: testbed-e2e
testbed-e2e: build ## Bring clusters of the testbed up, kill and repair them (root)
	$(MAKE) --no-print-directory image PLATFORMS=$(HOST)
	cd testbed && TESTBED_E2E=1 go test -count=1 -timeout 10m . $(DOWN)
	E2E=1 go test -count=1 -timeout 5m ./test/clusterset $(DOWN)

# Not part of make test: Traefik takes minutes to build.
.PHONY: gateway
gateway: build bin/traefik ## Split traffic between real clusters by the weights of an HTTPRoute (root; docs/gateway-api.md)
	$(MAKE) --no-print-directory image PLATFORMS=$(HOST)
	bin/oci-image --out dist/traefik.tar --ref docker.io/library/traefik:$$(go list -C hack/traefik -m -f '{{.Version}}' github.com/traefik/traefik/v3) \
	  --entrypoint /traefik --platform $(HOST)=bin/traefik
	E2E=1 GATEWAY=1 go test -count=1 -timeout 20m -v ./test/e2e -run '^TestGateway$$' $(DOWN)

# Not part of make test: Envoy Gateway takes minutes to build.
.PHONY: gateway-imports
gateway-imports: build bin/envoy-gateway ## Compare the endpoints that Envoy Gateway programs for routes to imports with those of the imports (root; docs/gateway-api.md)
	bin/testbed build
	GOTOOLCHAIN=auto go build -C hack/envoy-gateway -ldflags '-s -w' -o ../../bin/envoy-gateway-xds ./xds
	KUBEBUILDER_ASSETS="$$(bin/testbed assets)" REQUIRE_ENVTEST=1 GATEWAY=1 go test -count=1 -timeout 10m -v ./internal/controller -run '^TestEnvoyGateway$$'

# The image of the servers of the conformance suite, under the name that it uses: Debian's socat, and busybox as the shell. That of its clients is in the testbed.
dist/socat.tar: build
	@mkdir -p dist
	missing=; for p in socat busybox; do command -v $$p >/dev/null || missing="$$missing $${p/busybox/busybox-static}"; done; \
	  [ -z "$$missing" ] || { apt-get update -q && apt-get install -y -q --no-install-recommends $$missing; }
	socat=$$(command -v socat) && bin/oci-image --out $@ --ref alpine/socat:1.7.4.4 --user 0:0 --entrypoint /bin/sh --platform $(HOST)="$$(command -v busybox)" \
	  --file "$$socat=/usr/bin/socat" $$(ldd "$$socat" | grep -o '/[^ ]*' | sed 's/.*/--file &=&/')

# Not part of make test: the suite is not in this repository. SUITE is a checkout of kubernetes-sigs/mcs-api with the compiled tests of its folder conformance.
.PHONY: conformance
conformance: ## Run the conformance suite of the checkout SUITE of mcs-api, compiled there, and write its reports into dist/conformance (root; REGISTRY=etcd, STACK=ipv4 pick)
	@[ -x "$(abspath $(SUITE))/conformance/conformance.test" ] || { echo "set SUITE to a checkout of kubernetes-sigs/mcs-api with its compiled suite, conformance/conformance.test" >&2; exit 1; }
	$(MAKE) --no-print-directory dist/socat.tar image PLATFORMS=$(HOST)
	failed=; for registry in $(or $(REGISTRY),cloudmap etcd); do for stack in $(or $(STACK),ipv4 dual-stack); do ( \
	  export E2E=1 E2E_TESTBED=$$([ $$stack = ipv4 ] || echo --$$stack) REGISTRY=$$registry SUITE="$(abspath $(SUITE))" VERSION=$(or $(TAG),$(VERSION)-$$(git rev-parse --short HEAD)); \
	  go test -count=1 -timeout 40m -v ./test/e2e -run '^TestConformance$$' $(DOWN) ) || failed=1; done; done; [ -z "$$failed" ]

# Not part of make test: waits for an alert, and needs Debian's Prometheus and Chromium.
.PHONY: monitoring
monitoring: build ## Run the dashboard's queries and an alert in a real Prometheus, which it installs (root; PICTURES=1 writes the pictures of the docs)
	missing=; for p in chromium prometheus; do command -v $$p >/dev/null || missing="$$missing $$p"; done; \
	  [ -z "$$missing" ] || { apt-get update -q && apt-get install -y -q --no-install-recommends $$missing; }
	$(MAKE) --no-print-directory image PLATFORMS=$(HOST)
	E2E=1 MONITORING=1 go test -count=1 -timeout 20m -v ./test/e2e -run '^TestMonitoring$$' $(DOWN)

.PHONY: matrix
matrix: build ## Run scenarios on several versions of Kubernetes, CoreDNS and the CRDs and both modes of kube-proxy, and write docs/versions.md (root; ROWS=1,4 picks)
	$(MAKE) --no-print-directory image PLATFORMS=$(HOST)
	go run ./test/matrix $(if $(ROWS),-rows $(ROWS)) $(DOWN)

.PHONY: bench
bench: build ## Measure what docs/benchmarks shows (root; SECTIONS=steady,micro picks; DRAFT=1 accepts uncommitted changes and writes dist/benchmarks)
	$(MAKE) --no-print-directory image PLATFORMS=$(HOST)
	go run ./test/bench $(if $(DRAFT),-draft) $(if $(SECTIONS),-sections $(SECTIONS))

.PHONY: soak
soak: ## Run the random fault tests of both registries for STEPS steps each (hours; FROM= continues, REGISTRIES=etcd picks)
	bin=$$([ ! -x bin/testbed ] || bin/testbed assets); KUBEBUILDER_ASSETS="$${KUBEBUILDER_ASSETS:-$$bin}" STEPS="$(STEPS)" SEED="$(SEED)" FROM="$(FROM)" REGISTRIES="$(REGISTRIES)" hack/soak

# PACKAGES and SAMPLE empty: all mutants of the core (hack/mutate/main.go), which takes hours on 2 cores.
JOBS ?= 2
SEED ?= 1
.PHONY: mutate
mutate: ## Put bugs into the code and print those that no unit test notices (PACKAGES=./internal/mcs picks, SAMPLE=60 SEED=1 tries some)
	bin=$$([ ! -x bin/testbed ] || bin/testbed assets); KUBEBUILDER_ASSETS="$$bin" nice go run ./hack/mutate -packages="$(PACKAGES)" -jobs=$(JOBS) -max=$(or $(SAMPLE),0) -seed=$(SEED) $(MUTATE_FLAGS)

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (1m each, some 25 minutes in all; PACKAGES=./internal/mcs picks)
	FUZZTIME="$(FUZZTIME)" PACKAGES="$(PACKAGES)" hack/fuzz

.PHONY: lint
lint: ## Check words, style, errors, the import rules and known vulnerabilities (VULNDB= names a copy of the database)
	go run ./hack/words
	go run ./hack/columns
	VULNDB="$(VULNDB)" go run ./hack/vulncheck
	go tool -modfile=$(CURDIR)/hack/actionlint/go.mod actionlint -shellcheck= -pyflakes=
	$(TOOL) golangci-lint run ./...
	cd testbed && $(TOOL) golangci-lint run --config ../.golangci.yml ./...

.PHONY: generate
generate: ## Write the generated files: CRDs, RBAC, deepcopy, protobuf, reference docs
	hack/generate

.PHONY: verify
verify: ## Fail when a generated file or go.mod is stale
	hack/verify

# One OCI archive per program and no Docker engine: dist/controller.tar, dist/cloudmap-local.tar.
.PHONY: image
image: ## Build the multi-arch OCI images into dist/ (PLATFORMS picks)
	@mkdir -p dist
	for p in controller cloudmap-local; do for f in $(PLATFORMS); do \
	  GOOS=$${f%/*} GOARCH=$${f#*/} go build -ldflags '$(LDFLAGS)' -o dist/$$p-$${f#*/} ./cmd/$$p || exit 1; done; done
	go run -C testbed ./cmd/oci-image --out ../dist/controller.tar --ref $(REPO)/cloud-map-mcs-controller:$(VERSION) \
	  --entrypoint /program --user 65532:65532 $(foreach f,$(PLATFORMS),--platform $(f)=../dist/controller-$(notdir $(f)))
	go run -C testbed ./cmd/oci-image --out ../dist/cloudmap-local.tar --ref $(REPO)/cloudmap-local:$(VERSION) \
	  --entrypoint /program --user 65532:65532 $(foreach f,$(PLATFORMS),--platform $(f)=../dist/cloudmap-local-$(notdir $(f)))

.PHONY: push
push: image bin/crane ## Build the controller's image and push it to IMAGE=registry.example.com/mcs:v0.1.0, on Linux or macOS
	@[ -n "$(IMAGE)" ] || { echo "set IMAGE, such as IMAGE=registry.example.com/mcs:$(VERSION)" >&2; exit 1; }
	rm -rf dist/controller && mkdir dist/controller && tar -xf dist/controller.tar -C dist/controller
	bin/crane push dist/controller $(IMAGE)

# RELEASE.md describes the files. KEY is a private key of cosign; without it nothing is signed. PLATFORMS picks some for a rehearsal.
RELEASE_FLAGS = -version $(VERSION) $(if $(filter command line,$(origin PLATFORMS)),-platforms $(PLATFORMS))

.PHONY: release
release: bin/helm $(if $(KEY),bin/cosign) ## Make everything that a release is, in dist/release (VERSION=v0.1.0; KEY=cosign.key signs it; PLATFORMS=linux/amd64 picks)
	go run ./hack/release build $(RELEASE_FLAGS)
	$(if $(KEY),go run ./hack/release sign -key $(KEY))

.PHONY: release-check
release-check: bin/helm ## Make the release of HEAD twice, in two clones and build caches, and compare
	hack/release/check $(RELEASE_FLAGS)

.PHONY: sbom-check
sbom-check: build bin/syft ## Compare the SBOMs that a release writes with what syft finds in the same programs
	REQUIRE_SYFT=1 go test -count=1 -v ./hack/release -run '^TestNewSBOM_IsWhatSyftFinds$$'

.PHONY: publish
publish: bin/crane bin/helm bin/cosign ## Push images and chart of dist/release to TO=ghcr.io/cloud-map-mcs, and sign them (KEY=, or keyless in CI)
	go run ./hack/release publish -version $(VERSION) -to $(or $(TO),$(REPO)) $(if $(KEY),-key $(KEY))

.PHONY: release-test
release-test: build bin/helm bin/cosign bin/crane ## Make a release, publish it in a local registry, verify it, and install it on real clusters (root)
	go run ./hack/release build $(RELEASE_FLAGS)
	E2E=1 VERSION=$(VERSION) go test -count=1 -timeout 20m -v ./test/release $(DOWN)

.PHONY: clean
clean: ## Take the testbed down and remove what was built
	[ -z "$$(ls -d /sys/class/net/cmmcs0 /sys/fs/cgroup/{,*/}cloud-map-mcs-testbed 2>/dev/null)" ] || { \
	  [ -x bin/testbed ] || go build -C testbed -o ../bin/ ./cmd/testbed; bin/testbed down; }
	rm -rf bin dist hack/site/node_modules
