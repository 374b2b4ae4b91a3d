# Each verb does all its set-up by itself; only Python 3.11+ and make have to be there.
PYTHON ?= python3
ARGS ?=
tools = $(PYTHON) -m tools

.DEFAULT_GOAL := help
.PHONY: help sync demo test check format smoke crash soak lock

help: ## list these verbs
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-7s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

sync: ## install everything into .venv
	@$(tools) sync

demo: sync ## run the support agent; options as ARGS="--yes --no-kill"
	@.venv/bin/python docs/examples/support_agent/demo.py $(ARGS)

test: ## run all tests but the long ones; ARGS="--alone" runs every ci.sh in full
	@$(tools) test $(ARGS)

check: ## lint, types and the repository's own rules
	@$(tools) check $(ARGS)

format: sync ## rewrite the code in the one format
	@.venv/bin/ruff check --fix --quiet . ; .venv/bin/ruff format .

smoke: ## build all, install each alone elsewhere, use it; options as ARGS="--python this"
	@$(tools) smoke $(ARGS)

crash: ## kill real processes hundreds of times; options as ARGS="--kills 50"
	@$(tools) crash $(ARGS)

soak: ## run what takes long on purpose; options as ARGS="--minutes 5"
	@$(tools) soak $(ARGS)

lock: ## resolve dependencies and write uv.lock
	@$(tools) lock $(ARGS)
