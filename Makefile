PYTHON ?= python3
BIN := .venv/bin
# Of the plugins that pip has brought along, each worker would load and rewrite all.
PYTEST := PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(BIN)/pytest -p xdist -p _hypothesis_pytestplugin
# The tests' files are in memory where there is room for them: a disk takes milliseconds for each of their many syncs.
ROOM := $(shell grep -qs ' /dev/shm tmpfs [^ ]*noexec' /proc/mounts || df -Pm /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4096 { print "/dev/shm" }')
FAST := $(if $(ROOM),PYTEST_DEBUG_TEMPROOT=$(ROOM)) $(PYTEST) -n auto --maxprocesses 4 --dist worksteal
INSTALL := $(BIN)/pip install -c constraints.txt
AXE := 4.11.0
NEW := "build/first contact"
SCIFACT := ../shared/data/beir/scifact
GENERATED := docs/cli.md docs/training-reference.md
# Where an image forbids compiled modules, each process that the tests start would compile all of them again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup setup-demo demo demo-check test tests test-quick slow-tests test-long mutants test-installs test-integrations rooms check check-types check-generated generate docs campaigns bench bench-index bench-reports \
	bench-encoding bench-gpu clean

setup: .venv/installed .venv/npm/axe-core  ## everything that test and bench need

setup-demo: .venv/demo  ## only what the demo needs

# constraints.txt pins what was tested; torch is installed first, as the build that is pinned.
.venv/torch: constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) "torch==$$(sed -n 's/^torch==//p' constraints.txt)"
	touch $@

.venv/demo: .venv/torch pyproject.toml
	$(INSTALL) -e ".[starter,train]"
	touch $@

.venv/installed: .venv/torch pyproject.toml
	$(INSTALL) -e ".[all,multilingual,mteb,tensorboard,dev]"
	touch $@ .venv/demo

# What the tests of the search page check its accessibility with; they are skipped without it.
.venv/npm/axe-core: .venv/torch
	mkdir -p .venv/npm
	npm install --silent --no-save --prefix .venv/npm axe-core@$(AXE) || echo "no axe-core: npm failed"
	touch $@

.venv/docs: .venv/demo
	$(INSTALL) -e ".[starter,train,docs]"
	touch $@

demo: setup-demo  ## train, index, ask and measure on the sample data
	$(BIN)/searchengine demo demo

demo-check:  ## make demo in a fresh clone, in a path with a space and with an empty home, some two minutes
	rm -rf $(NEW) && mkdir -p $(NEW)/home && git clone --quiet . $(NEW)/clone
	env -u PYTHONPATH -u XDG_CACHE_HOME HOME="$$PWD/"$(NEW)/home PIP_CACHE_DIR="$$($(PYTHON) -m pip cache dir)" \
		PIP_CONFIG_FILE="$${PIP_CONFIG_FILE-$$HOME/.config/pip/pip.conf}" \
		$(MAKE) -C $(NEW)/clone demo > $(NEW)/shown || { cat $(NEW)/shown; exit 1; }
	for hit in whales-01 bread-19 databases-06 "│ exact "; do grep -F "$$hit" $(NEW)/shown || exit 1; done

test: setup  ## the checks, and the tests of everything that an edit can break, five minutes on two cores
	$(MAKE) -j 2 check tests

tests: setup
	$(FAST)

test-quick: setup  ## the tests that take little time, half a minute on two cores, for while you edit
	$(FAST) $$(sed 's#^#--deselect=tests/#' tests/slow_tests.txt)

slow-tests: setup  ## measure which tests those are not
	$(FAST) --junitxml=build/tests.xml
	$(BIN)/python tests/slow_tests.py build/tests.xml

test-long: setup  ## all tests, with all faults and 20 times the random examples, some hours
	$(PYTEST) -n auto --maxprocesses 4 --dist loadfile -m "" --hypothesis-profile long

mutants: setup  ## break the code in fifteen ways, one at a time: which test notices, some 10 minutes
	$(BIN)/python tests/mutants.py

test-installs: setup  ## every install line by pip, and the commands that it promises, some 40 minutes
	$(PYTEST) -m "" tests/test_installs.py

# Their packages beside those of .venv, which pytest's plugins among them would disturb.
.venv/integrations/installed: .venv/installed
	$(BIN)/python -m venv .venv/integrations
	$(BIN)/python -c "import site; print(site.getsitepackages()[0])" > .venv/integrations/lib/site.pth
	mv .venv/integrations/lib/site.pth .venv/integrations/lib/python3*/site-packages/
	.venv/integrations/bin/pip install -c constraints.txt -e ".[mcp,langchain,llamaindex,haystack]" langchain-tests pytest-asyncio
	touch $@

test-integrations: .venv/integrations/installed  ## LangChain, LlamaIndex and Haystack, with their own tests, a minute
	.venv/integrations/bin/python -m pytest -o asyncio_mode=auto -o asyncio_default_fixture_loop_scope=function \
		tests/searchengine/integrations

rooms:  ## the size of each room: lines now, budget, target
	$(PYTHON) tests/rooms.py

check: setup check-generated check-types  ## style, types, imports between folders, generated docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

check-types: setup  ## mypy and import contracts
	$(BIN)/mypy
	$(BIN)/lint-imports

check-generated: setup  ## are the generated parts of the docs current?
	$(BIN)/cog --check $(GENERATED)
	$(BIN)/python docs/draw_architecture.py --check

generate: setup  ## rewrite the generated parts of the docs, and the pictures of the packages
	$(BIN)/cog -r $(GENERATED)
	$(BIN)/python docs/draw_architecture.py

docs: .venv/docs  ## build the site in build/docs, without a network; warnings are errors
	$(BIN)/sphinx-build -W --keep-going -q -b html docs build/docs

bench: setup  ## the figures of quality and training in docs/results.md, some six hours
	for part in english kinds languages mixed across; do \
		$(BIN)/python benchmarks/retrieval.py --part $$part || exit 1; done
	for name in sts tuning train_speed simcse few_shot long_documents; do \
		$(BIN)/python benchmarks/$$name.py || exit 1; done
	$(BIN)/python benchmarks/matryoshka_finetune.py --test

bench-reports: setup  ## the report in docs/reports, of which pictures and JSON are committed, some minutes
	rm -rf build/scifact.index
	$(BIN)/searchengine index $(SCIFACT) build/scifact.index --passages 0
	$(BIN)/searchengine bench build/scifact.index --queries $(SCIFACT)/queries.jsonl.gz \
		--qrels $(SCIFACT)/qrels/test.tsv --out docs/reports/scifact
	# Where it was measured is nobody's business.
	sed -i 's#"path": "/[^"]*/#"path": "#' docs/reports/scifact/results.json

campaigns: setup  ## what docs/operating.md says about faults, processes and threads, some hours
	$(BIN)/python tests/model.py --seeds 0:30 --steps 4000
	$(BIN)/python tests/fault_harness.py

bench-index: setup  ## the figures of search in docs/results.md, some 70 minutes, half of it encoding and peers' builds
	$(BIN)/pip install -c constraints.txt -e ".[peers]"
	test -e vectors.npy || $(BIN)/python benchmarks/vectors.py vectors.npy
	$(BIN)/python benchmarks/search_speed.py
	$(BIN)/python benchmarks/search_speed.py --vectors vectors.npy
	$(BIN)/python benchmarks/filters.py --vectors vectors.npy
	$(BIN)/python benchmarks/scale.py --vectors vectors.npy --rows 10000,50000,200000
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/scale.py --structure ivf
	$(BIN)/python benchmarks/word_speed.py

bench-encoding: setup  ## the figures of encoding and questions in docs/results.md, some 80 minutes
	$(BIN)/pip install -c constraints.txt -e ".[peers]"
	$(BIN)/python benchmarks/encoding.py --documents 1000 --sentences 10000
	$(BIN)/python benchmarks/indexing.py
	$(BIN)/python benchmarks/questions.py --work questions

bench-gpu: setup  ## searches and encoded documents a second on a GPU
	$(BIN)/python benchmarks/gpu.py
	$(BIN)/python benchmarks/encoding.py --device cuda --no-quality

clean:
	rm -rf .venv demo build/docs docs/api
