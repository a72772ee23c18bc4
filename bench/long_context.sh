#!/usr/bin/env bash
# One training step of one document of 131,072 tokens on two ranks (configs/long_context.yaml), and what it took.
#   bench/long_context.sh [TOKENS] [--section.key=value ...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tokens=131072
if [[ ${1:-} =~ ^[0-9]+$ ]]; then tokens=$1; shift; fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
awk -v words="$tokens" 'BEGIN {
  srand(7)
  printf "{\"messages\": [{\"role\": \"user\", \"content\": \"go\"}, {\"role\": \"assistant\", \"content\": \""
  for (i = 0; i < words; ++i) printf "%c ", 97 + int(rand() * 26)
  print "\"}]}"
}' > "$folder/document.jsonl"
build/release/hyperparallel train configs/long_context.yaml --ranks 2 --data.train="[$folder/document.jsonl]" --data.seq_len="$tokens" \
  --train.output="$folder/run" "$@" &
run=$!
# The most memory of both ranks at one time, without what they share: proportional set size.
most=0
while kill -0 "$run" 2>/dev/null; do
  now=0
  for process in $(pgrep -f "$folder/document.jsonl" || true); do
    pss=$(awk '/^Pss:/ {print $2}' "/proc/$process/smaps_rollup" 2>/dev/null || true)
    now=$((now + ${pss:-0}))
  done
  ((now > most)) && most=$now
  sleep 1
done
wait "$run"
awk -v kb="$most" 'BEGIN {printf "all ranks together: at most %.2f GB (10^9 bytes) resident at a time\n", kb * 1024 / 1e9}'
grep -oE '"(seconds|tokens_per_second|memory/max_rss\(GiB\)|memory/max_active\(GiB\)|exchange/wait\(s\))":[^,}]*' "$folder/run/metrics.jsonl"
