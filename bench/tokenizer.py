#!/usr/bin/env python3
"""Tokenizer speed beside Hugging Face `tokenizers` (encode_batch_fast): same text, same run, one thread each.

The text is what a machine has: licences, C headers, Python sources, locale definitions, and the multilingual strings of the
golden fixtures. Needs build/release/bench_tokenizer, scripts/fetch_test_data.py, and the Python package `tokenizers`.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import sysconfig
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
import tokenizers  # noqa: E402  (reads the environment)

ROOT = pathlib.Path(__file__).resolve().parent.parent


def files_of(folder: str, pattern: str, limit: int) -> list[str]:
    """Texts of the folder's files in order of name, up to `limit` bytes."""
    texts, size = [], 0
    for path in sorted(pathlib.Path(folder).rglob(pattern)):
        if size >= limit or not path.is_file():
            continue
        try:
            texts.append(path.read_text(encoding="utf-8")[: limit - size])
        except (UnicodeDecodeError, OSError):
            continue
        size += len(texts[-1].encode())
    return [text for text in texts if text]


def build_corpus() -> dict[str, list[str]]:
    golden = [json.loads(line)["text"] for line in open(ROOT / "tests/golden/data/tokenizer-v41.jsonl", encoding="utf-8")]
    corpus = {
        "licences": files_of("/usr/share/common-licenses", "*", 3_000_000),
        "python": files_of(sysconfig.get_path("stdlib"), "*.py", 2_500_000),
        "c headers": files_of("/usr/include", "*.h", 2_000_000),
        "locales": files_of("/usr/share/i18n/locales", "*", 500_000),
        "golden strings": golden * 20,
    }
    return {name: texts for name, texts in corpus.items() if texts}


def peer_seconds(peer: "tokenizers.Tokenizer", texts: list[str]) -> float:
    best = float("inf")
    for _ in range(2):
        begin = time.perf_counter()
        peer.encode_batch_fast(texts, add_special_tokens=False)
        best = min(best, time.perf_counter() - begin)
    return best


def own_result(binary: str, tokenizer: str, texts: list[str]) -> dict:
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
        file.flush()
        return json.loads(subprocess.run([binary, tokenizer, file.name], check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build/release/bench_tokenizer"))
    parser.add_argument("--tokenizer", default=str(ROOT / "build/test-data/tokenizer-v41.json"))
    options = parser.parse_args()
    peer = tokenizers.Tokenizer.from_file(options.tokenizer)
    corpus = build_corpus()
    corpus["all"] = [text for texts in corpus.values() for text in texts]
    print(f"{'text':<16}{'MB':>8}{'tokens':>10}{'tokenizers MB/s':>17}{'ours MB/s':>11}{'ratio':>7}")
    for name, texts in corpus.items():
        own = own_result(options.binary, options.tokenizer, texts)
        megabytes = own["bytes"] / 1e6
        peer_rate, own_rate = megabytes / peer_seconds(peer, texts), megabytes / own["seconds"]
        print(f"{name:<16}{megabytes:8.2f}{own['tokens']:10}{peer_rate:17.2f}{own_rate:11.2f}{own_rate / peer_rate:7.1f}")
        peer_tokens = sum(len(encoding.ids) for encoding in peer.encode_batch_fast(texts, add_special_tokens=False))
        if peer_tokens != own["tokens"]:
            sys.exit(f"error: `tokenizers` makes {peer_tokens} tokens of this text")
    print(f"loading the file: {own['load_seconds']:.2f} s; `tokenizers` {tokenizers.__version__}")


if __name__ == "__main__":
    main()
