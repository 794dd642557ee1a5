# Two commands matter: `make demo` and `make test`. Both start from a fresh clone on a Linux machine with Go, git, make and apt.
SHELL := /bin/bash -o pipefail
.DEFAULT_GOAL := help

VERSION   ?= v0.1.0
PLATFORMS ?= linux/amd64 linux/arm64
REPO      := ghcr.io/cloud-map-mcs
MODULE    := github.com/cloud-map-mcs/cloud-map-mcs-controller
LDFLAGS   := -s -w -X $(MODULE)/internal/config.Version=$(VERSION)
HOST      := linux/$(shell go env GOHOSTARCH)
TOOL      := go tool -modfile=$(CURDIR)/hack/tools/go.mod

export GOTOOLCHAIN := local
export GOFLAGS += -buildvcs=false -trimpath
export CGO_ENABLED := 0

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build the controller, kubectl-mcs, cloudmap-local and the testbed into bin/
	go build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...
	go build -C testbed -o ../bin/ ./cmd/...

# The real Helm, for the chart's tests and scenarios; pinned in hack/helm/go.mod (3 minutes on 2 cores the first time).
bin/helm: hack/helm/go.mod hack/helm/go.sum
	go build -C hack/helm -ldflags '-s -w' -o ../../bin/helm helm.sh/helm/v4/cmd/helm
	@touch $@

# The real promtool, for the tests of alerts and dashboard; pinned in hack/promtool/go.mod (3 minutes on 2 cores the first time).
# Without service discovery, which it does not need here and which makes half of it.
bin/promtool: hack/promtool/go.mod hack/promtool/go.sum
	go build -C hack/promtool -tags remove_all_sd -ldflags '-s -w' -o ../../bin/promtool github.com/prometheus/prometheus/cmd/promtool
	@touch $@

# The real etcdutl, for the scenarios that restore a snapshot; pinned in hack/etcdutl/go.mod.
bin/etcdutl: hack/etcdutl/go.mod hack/etcdutl/go.sum
	go build -C hack/etcdutl -ldflags '-s -w' -o ../../bin/etcdutl go.etcd.io/etcd/etcdutl/v3
	@touch $@

.PHONY: demo
demo: build ## Watch the walk-through happen on two real clusters (KEEP=1 leaves them up, REGISTRY=etcd uses etcd)
	$(MAKE) --no-print-directory image PLATFORMS=$(HOST)
	go run ./test/demo $(if $(RECORD),-record $(RECORD))

.PHONY: clusters
clusters: build ## Bring two real clusters and cloudmap-local up to work with (docs/quick-start.md); make clean takes them down
	$(MAKE) --no-print-directory image PLATFORMS=$(HOST)
	go run ./test/demo -up

.PHONY: test
test: unit e2e ## Run every test: unit, registries, a real API server, scenarios on real clusters

.PHONY: unit
unit: build bin/helm bin/promtool ## Run the tests that need no cluster (a real API server included)
	bin/testbed build
	KUBEBUILDER_ASSETS="$$(bin/testbed assets)" REQUIRE_ENVTEST=1 REQUIRE_HELM=1 REQUIRE_PROMTOOL=1 go test -timeout 40m ./api/... ./cloudmaplocal/... ./cmd/... ./deploy/... ./hack/... ./internal/... ./test/attack ./test/clusterset ./test/docs
	cd testbed && go test -timeout 15m ./...

# The scenarios that a registry can make a difference to; make e2e REGISTRY=etcd runs the others on etcd as well.
ON_ETCD := ^Test(Tutorial|ReadinessFlip|ManyEndpoints|DeletedNamespace|KilledController|TwoClustersWithOneID|RegistryDown|Stale|EtcdUsers|ImportsSurvive)

# The packages of the testbed run one after the other (-p 1): the first one compares the machine's network namespaces.
# A run that ends by a time limit or a crash must leave no testbed to the next one.
DOWN := || { code=$$?; $(if $(KEEP),,$(CURDIR)/bin/testbed down;) exit $$code; }

.PHONY: e2e
e2e: build bin/helm bin/promtool $(if $(E2E_ALL),bin/etcdutl) ## Run the scenarios on real clusters (root; RUN=regexp picks some, KEEP=1 leaves them up, REGISTRY=etcd uses etcd)
	$(MAKE) --no-print-directory image PLATFORMS=$(HOST)
	$(if $(RUN),,cd testbed && TESTBED_E2E=1 go test -count=1 -p 1 -timeout 10m . ./netpolicy $(DOWN))
	$(if $(RUN),,E2E=1 go test -count=1 -timeout 5m ./test/clusterset $(DOWN))
	E2E=1 go test -count=1 -timeout $(if $(E2E_ALL),90m,40m) -parallel 6 -v ./test/e2e $(if $(RUN),-run '$(RUN)') $(DOWN)
	$(if $(RUN)$(REGISTRY),,E2E=1 REGISTRY=etcd go test -count=1 -timeout $(if $(E2E_ALL),90m,20m) -parallel 6 -v ./test/e2e -run '$(ON_ETCD)' $(DOWN))

.PHONY: bench
bench: build ## Measure what docs/benchmarks shows (root; SECTIONS=steady,micro picks)
	$(MAKE) --no-print-directory image PLATFORMS=$(HOST)
	go run ./test/bench $(if $(SECTIONS),-sections $(SECTIONS))

.PHONY: soak
soak: ## Run the random fault tests of both registries for STEPS steps each (hours; SEED= continues, REGISTRIES=etcd picks)
	bin=$$([ ! -x bin/testbed ] || bin/testbed assets); KUBEBUILDER_ASSETS="$${KUBEBUILDER_ASSETS:-$$bin}" STEPS="$(STEPS)" SEED="$(SEED)" REGISTRIES="$(REGISTRIES)" hack/soak

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
	VULNDB="$(VULNDB)" go run ./hack/vulncheck
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

.PHONY: clean
clean: ## Take the testbed down and remove what was built
	[ -z "$$(ls -d /sys/class/net/cmmcs0 /sys/fs/cgroup/{,*/}cloud-map-mcs-testbed 2>/dev/null)" ] || { \
	  [ -x bin/testbed ] || go build -C testbed -o ../bin/ ./cmd/testbed; bin/testbed down; }
	rm -rf bin dist
