GO ?= go
BIN := bin/relay
TOOLS := -modfile=.ci/tools/go.mod
LDFLAGS = -X github.com/relaymq/relay/internal/version.set=$(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
FUZZTIME ?= 30s
SEED ?= 0
SEEDS ?= 1
ROW ?=
PKGS ?=
SOAK ?= 1h
# The servers of tests run in this program (package internal/natstest), which each test process would otherwise have built by go run.
export RELAY_TEST_NATSD := $(CURDIR)/bin/natsd
BENCHFLAGS ?=
BENCHBASE ?= HEAD
BENCHPKGS ?= ack internal/supervise consumer internal/dlq
BENCHCOUNT ?= 6
HEAVY = relay/(consumer|cmd/relay/program)$$
LONG = ./internal/supervise ./internal/schedule ./internal/retry ./internal/dlq ./client
HARNESS = /internal/(chaos|upgrade)(/|$$)
BENCHARGS ?= -run '^$$' -bench 'Session|Group|Path|Entry' -benchmem -benchtime 0.3s -timeout 5m

.PHONY: help run test test-beside first-row second-row test-relay test-consumer test-program test-harness test-timed test-large test-bench natsd check lint cover build rules console fuzz vuln notice chaos soak
.PHONY: bench bench-diff profile

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

run: build ## run relay with its embedded server and the example configuration, fed with orders
	@mkdir -p relay-data
	$(BIN) run -c config.example.yaml --set log.level=debug --demo testdata/demo/orders.jsonl

build: ## build bin/relay
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN) ./cmd/relay

test: test-beside test-timed test-bench ## run all tests, with the race detector but for what measures times or breaks processes, and the jobs of the bench in small

# Two rows of groups side by side, as each group leaves the cores idle for a third to a half of its time. What breaks processes measures times, so that its
# row has the cores first. What the second one prints comes when it is done. Nothing is beside what measures times to the millisecond.
# The rows are no jobs of this make (MAKEFLAGS is empty): each has one group after the other.
test-beside: natsd
	@$(MAKE) -j2 -o natsd first-row second-row

ROW_OF = MAKEFLAGS= nice -n $(1) $(MAKE) $(if $(findstring k,$(firstword -$(MAKEFLAGS))),-k) -o natsd GO='$(GO)'

first-row:
	@$(call ROW_OF,0) test-harness test-consumer test-large

second-row:
	@log=$$(mktemp); trap 'rm -f "$$log"' EXIT; rc=0; $(call ROW_OF,5) test-relay test-program >"$$log" 2>&1 || rc=1; cat "$$log"; exit $$rc

# The race detector waits for a second at the end of each test binary, for races of goroutines that still run; goleak says that none do. `make check` has vetted
# all of it.
RACE = GORACE=atexit_sleep_ms=0 $(GO) test -race -vet=off -timeout 25m

# Most tests wait for a server or another process, so that more run side by side than on two cores by default. What takes longest comes first, so that it is not
# alone at the end.
test-relay: natsd
	$(RACE) -p 4 -parallel 3 $$($(GO) list $(LONG) ./... | grep -vE '$(HARNESS)|$(HEAVY)')

test-consumer: natsd
	$(RACE) -parallel 12 ./consumer

test-program: natsd
	$(RACE) -parallel 12 ./cmd/relay/program

# The programs that it runs are built without the race detector, as users run them.
test-harness: natsd
	$(GO) test -vet=off -timeout 25m -p 2 -parallel 10 $$($(GO) list ./... | grep -E '$(HARNESS)')

# What measures times, and what plays hours with thousands of messages, says so by its name, and skips itself with the race detector.
test-timed: natsd
	$(GO) test -vet=off -timeout 25m -p 1 -parallel 6 -run '_timed$$' ./consumer ./cmd/relay/internal/config

test-large: natsd
	$(GO) test -vet=off -timeout 25m -parallel 6 -run '_large$$' ./internal/supervise

natsd:
	$(GO) build -o $(RELAY_TEST_NATSD) ./internal/natstest/natsd

test-bench:
	cd bench && $(GO) test ./...

check: ## gofmt, vet, staticcheck and build: what CI wants before the tests
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo "run gofmt -w on these"; exit 1; }
	GOGC=400 $(GO) vet ./...
	cd bench && GOGC=400 $(GO) vet ./...
	GOGC=400 $(GO) tool $(TOOLS) staticcheck ./...
	$(GO) build ./...

lint: ## golangci-lint with .golangci.yml, which says what it looks for; it is built at first, which takes a minute or two
	$(GO) tool -modfile=.ci/tools/lint.mod golangci-lint run ./...

cover: natsd ## how much of each package its own tests cover, and whether that is below a floor of .ci/floors; it runs all tests
	GO=$(GO) .ci/cover $(PKGS)

rules: ## check the alert rules of deploy/prometheus and run their tests; needs promtool (Debian: prometheus)
	promtool check rules deploy/prometheus/relay.rules.yaml
	promtool test rules deploy/prometheus/relay.rules.test.yaml

console: build ## drive the console in a real browser; needs chromium (Debian: chromium)
	cd testdata/browser && $(GO) test -count=1 ./...

fuzz: natsd ## fuzz every fuzz target for FUZZTIME each
	@for pkg in $$($(GO) list ./...); do \
		for f in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
			echo "$$pkg $$f"; $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) $$pkg || exit 1; \
		done; \
	done

vuln: ## ask for known vulnerabilities in what relay calls; it needs the network
	$(GO) tool -modfile=.ci/tools/vuln.mod govulncheck ./...

notice: ## write NOTICE, with the licences of what the program is built of
	$(GO) test ./internal/repo -run TestLicences -update

bench: build ## compare relay with plain nats.go and Watermill: about 40 minutes on a quiet machine; BENCHFLAGS=-quick for a look
	cd bench && $(GO) build -trimpath -o ../bin/bench . && ../bin/bench -relay ../$(BIN) $(BENCHFLAGS)

bench-diff: natsd ## Go benchmarks of the hot path, against those of BENCHBASE, the last commit
	@set -e; base=$$(mktemp -d); trap 'rm -rf "$$base"' EXIT; mkdir -p bin; git archive $(BENCHBASE) | tar -x -C "$$base"; \
		for f in $$(grep -l '^func Benchmark' $(BENCHPKGS:%=%/*bench_test.go)); do \
			[ ! -e "$$base/$$f" ] || continue; cp "$$f" "$$base/$$f"; \
			(cd "$$base" && $(GO) vet ./$$(dirname "$$f") 2>/dev/null) || { echo "$$f does not build at $(BENCHBASE)"; rm "$$base/$$f"; }; \
		done; \
		: > bin/bench-old.txt; : > bin/bench-new.txt; \
		for i in $$(seq $(BENCHCOUNT)); do \
			(cd "$$base" && $(GO) test $(BENCHARGS) $(BENCHPKGS:%=./%)) >> "$(CURDIR)/bin/bench-old.txt"; \
			$(GO) test $(BENCHARGS) $(BENCHPKGS:%=./%) >> bin/bench-new.txt; \
		done
	$(GO) tool -modfile=bench/tools/go.mod benchstat old=bin/bench-old.txt new=bin/bench-new.txt

profile: build ## CPU, allocation and mutex profiles of a drain by the library, and a flame graph, in bin/profile
	cd bench && $(GO) build -o ../bin/bench . && ../bin/bench -relay ../$(BIN) -jobs drain-128 -contestants library -rounds 1 -profile ../bin/profile -out ''
	bin/bench -flame bin/profile/cpu.pprof > bin/profile/flame.svg
	$(GO) tool pprof -top -nodecount 40 bin/profile/cpu.pprof
	$(GO) tool pprof -sample_index alloc_objects -lines -top -nodecount 30 bin/profile/allocs.pprof
	$(GO) tool pprof -top -nodecount 15 bin/profile/mutex.pprof

chaos: SHELL := /bin/bash
chaos: ## break things at full figures and see that nothing is lost; SEED=n repeats a run, ROW=F01 picks a row, SEEDS=10 runs ten
	@set -o pipefail; for i in $$(seq 0 $$(($(SEEDS) - 1))); do \
		seed=$$(($(SEED) == 0 ? 0 : $(SEED) + i)); \
		$(GO) test -tags chaos -count=1 -timeout 120m -v -run '^Test$(ROW)$(if $(ROW),_)' ./internal/chaos -chaos.seed=$$seed \
			| grep -v '^=== ' || exit 1; \
	done

soak: SHELL := /bin/bash
soak: ## the random nemesis for SOAK (1h); SEED=n repeats a run
	@set -o pipefail; $(GO) test -tags chaos -count=1 -timeout 0 -v -run '^TestF105_soak' ./internal/chaos -chaos.seed=$(SEED) -chaos.soak=$(SOAK) \
		| grep -v '^=== '
