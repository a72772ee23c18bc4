#!/usr/bin/env bash
# Configures where that has not been done, and builds: scripts/build.sh PRESET [TARGETS...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=$1
shift
[ -f "build/$preset/build.ninja" ] || cmake --preset "$preset"
# As many compilers as there are cores, and as fit into the memory: one takes up to 1.5 GB.
jobs=$(awk -v cores="$(nproc)" '/^MemAvailable/ { fit = int($2 / 1.5e6); print fit < 1 ? 1 : fit < cores ? fit : cores }' /proc/meminfo)
ninja -j "$jobs" -C "build/$preset" "$@"
