GO ?= go
BIN := bin/relay
TOOLS := -modfile=.ci/tools/go.mod
LDFLAGS = -X main.version=$(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
FUZZTIME ?= 30s

.PHONY: help run test check build fuzz

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

run: build ## run relay with its embedded server and the example configuration, fed with orders
	@mkdir -p relay-data
	$(BIN) run -c config.example.yaml --set log.level=debug --demo testdata/demo/orders.jsonl

build: ## build bin/relay
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN) ./cmd/relay

test: ## run all tests, with the race detector
	$(GO) test -race -timeout 15m ./...

check: ## gofmt, vet, staticcheck and build: what CI wants before the tests
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo "run gofmt -w on these"; exit 1; }
	$(GO) vet ./...
	$(GO) tool $(TOOLS) staticcheck ./...
	$(GO) build ./...

fuzz: ## fuzz every fuzz target for FUZZTIME each
	@for pkg in $$($(GO) list ./...); do \
		for f in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
			echo "$$pkg $$f"; $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) $$pkg || exit 1; \
		done; \
	done
