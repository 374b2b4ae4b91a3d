#!/usr/bin/env bash
# Checks this package: lint, types, tests. Works from any folder and sets the workspace up by itself.
# DEXCLI, when set, is passed on to the tests, which then run on that engine.
set -euo pipefail
package="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cd "$package/../../.."
exec "${PYTHON:-python3}" -m tools package-ci "$package" "$@"
