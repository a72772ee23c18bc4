#!/usr/bin/env bash
# Formats the C++ sources as .clang-format says: scripts/format.sh [FILES...]; without files, all that git knows.
#   scripts/format.sh --check [FILES...]   changes nothing; names the files that differ and exits with 1 if there are any
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v clang-format >/dev/null || { echo "format: error: clang-format is missing: apt-get install clang-format" >&2; exit 1; }
check=no
[ "${1:-}" != --check ] || { check=yes; shift; }
[ $# -gt 0 ] || mapfile -t files < <(git ls-files '*.h' '*.cpp')
[ $# -eq 0 ] || files=("$@")

if [ $check = no ]; then exec clang-format -i "${files[@]}"; fi
differing=0
for file in "${files[@]}"; do
  clang-format --dry-run -Werror "$file" 2>/dev/null || { echo "$file"; differing=$((differing + 1)); }
done
echo "format: $differing of ${#files[@]} files differ; scripts/format.sh changes them"
[ $differing -eq 0 ]
