#!/usr/bin/env bash
# Steps of one long document on two ranks, and what they took.
#   bench/long_context.sh [CONFIG] [TOKENS] [--section.key=value ...]
# CONFIG: configs/long_context.yaml (text, 131,072 tokens) or configs/million.yaml (1,048,576 tokens with 256 pictures).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
config=configs/long_context.yaml
if [[ ${1:-} == *.yaml ]]; then config=$1; shift; fi
tokens=
if [[ -f $config ]]; then tokens=$(awk '$1 == "seq_len:" {print $2}' "$config"); fi
if [[ ${1:-} =~ ^[0-9]+$ ]]; then tokens=$1; shift; fi
if [[ ! -f $config || -z $tokens || ($# -gt 0 && $1 != --*) ]]; then
  echo "usage: bench/long_context.sh [CONFIG.yaml] [TOKENS] [--section.key=value ...]; found: $config ${1:-}" >&2
  exit 2
fi
pictures=0
if grep -q vision_config "$config"; then pictures=1; fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# Random letters, about a token each; where the model sees, in turns of 4,096 that answer to a picture each.
awk -v words="$tokens" -v pictures="$pictures" -v picture="$PWD/tests/golden/data/images/easyvqa-train-0.png" 'BEGIN {
  srand(7)
  printf "{\"messages\": ["
  for (i = 0; i < words; ++i) {
    if (i == 0 || (pictures && i % 4096 == 0)) {
      if (i > 0) printf "\"}, "
      printf "{\"role\": \"user\", \"content\": ["
      if (pictures) printf "{\"type\": \"image_url\", \"image_url\": {\"url\": \"%s\"}}, ", picture
      printf "{\"type\": \"text\", \"text\": \"go\"}]}, {\"role\": \"assistant\", \"content\": \""
    }
    printf "%c ", 97 + int(rand() * 26)
  }
  print "\"}]}"
}' > "$folder/document.jsonl"
build/release/hyperparallel train "$config" --ranks 2 --data.train="[$folder/document.jsonl]" --data.seq_len="$tokens" \
  --train.output="$folder/run" "$@" &
run=$!
trap 'kill "$run" 2>/dev/null; wait "$run" 2>/dev/null || true; exit 130' INT TERM HUP
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
grep -oE '"(step|loss|seconds|tokens_per_second|memory/max_rss\(GiB\)|memory/max_active\(GiB\)|exchange/wait\(s\))":[^,}]*' "$folder/run/metrics.jsonl"
