#!/usr/bin/env bash
# Configures where that has not been done, and builds: scripts/build.sh PRESET [TARGETS...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=$1
shift
[ -f "build/$preset/build.ninja" ] || cmake --preset "$preset"
ninja -C "build/$preset" "$@"
