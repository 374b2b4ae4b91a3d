#!/usr/bin/env bash
# Checks this package alone: installs it with its dev group into an environment of its own, then lint,
# types, tests. Works from any folder. `--shared` takes the workspace's .venv instead.
# DEXCLI, when set, names the engine that the tests run on.
set -euo pipefail
if [[ ${DEXCLI:-} == */* && $DEXCLI != /* ]]; then export DEXCLI="$PWD/$DEXCLI"; fi
package="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cd "$package/../../.."
exec "${PYTHON:-python3}" -m tools package-ci "$package" "$@"
