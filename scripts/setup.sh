#!/usr/bin/env bash
# Installs what HyperParallel needs and this machine lacks; run again, it does only what is missing.
#   scripts/setup.sh           Debian packages (scripts/apt-packages.txt), .venv with libtorch and easy-vqa (requirements.txt)
#   scripts/setup.sh --tests   also what tests and benchmarks need (requirements-test.txt, scripts/fetch_test_data.py)
# An existing .venv is kept. Environment:
#   PYTHON                      the Python (3.10 or newer) that makes .venv; default: the first of python3, python3.13 ... python3.10
#   HYPERPARALLEL_TORCH         a folder with libtorch: torch is then not installed into .venv
#   HYPERPARALLEL_TORCH_INDEX   the package index torch comes from. PyPI's build for Linux carries CUDA (some GB); the small
#                               CPU build is at https://download.pytorch.org/whl/cpu
#   HYPERPARALLEL_SKIP_APT=1    do not look at Debian packages
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'setup: %s\n' "$*"; }
fail() {
  printf 'setup: error: %s\n' "$1" >&2
  shift
  [ $# -eq 0 ] || printf '  %s\n' "$@" >&2
  exit 1
}

with_tests=no
for argument in "$@"; do
  case $argument in
    --tests) with_tests=yes ;;
    -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) fail "unknown argument $argument" "accepted: --tests, --help" ;;
  esac
done

# Lines of a list without comments.
entries() { sed 's/[[:space:]]*#.*//; /^$/d' "$1"; }

install_debian_packages() {
  command -v dpkg-query >/dev/null || fail "this system has no Debian packages" \
    "install what scripts/apt-packages.txt names in its own way, then run again with HYPERPARALLEL_SKIP_APT=1"
  local wanted installed missing root=() log=build/setup-apt.log
  wanted=$(entries scripts/apt-packages.txt)
  installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' $wanted 2>/dev/null | sed -n 's/^installed //p') || true
  missing=$(grep -vxF "$installed" <<<"$wanted" | xargs) || true
  [ -n "$missing" ] || return 0
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "these Debian packages are missing, and there is no sudo to install them: $missing" \
      "as root, run: apt-get install --no-install-recommends $missing"
    root=(sudo)
  fi
  mkdir -p build
  say "installing the Debian packages $missing"
  say "this takes a minute or two; what apt-get says goes to $log"
  "${root[@]}" apt-get update >"$log" 2>&1 || say "warning: apt-get update failed for some source; going on with the lists there are"
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing >>"$log" 2>&1 || {
    tail -n 15 "$log" >&2
    fail "apt-get could not install the packages above; all it said is in $log" \
      "the names are those of Debian 12; this is $(sed -n 's/^PRETTY_NAME=//p' /etc/os-release)"
  }
}

usable_environment() { .venv/bin/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }

make_environment() {
  usable_environment && return
  local python
  for python in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.10}; do
    if "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
      say "making .venv with $("$python" --version) ($(command -v "$python"))"
      "$python" -m venv .venv && usable_environment && return
      fail "$python -m venv .venv made no usable environment" "if .venv is an old folder or link, remove it and run again"
    fi
  done
  fail "no Python 3.10 or newer with the venv module among: ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.10}" \
    "name one with PYTHON=/path/to/python3 scripts/setup.sh"
}

# Prints the lines of a requirements file that .venv does not meet.
unmet() {
  .venv/bin/python - "$1" "${HYPERPARALLEL_TORCH:+torch}" <<'PYTHON'
import sys
from importlib.metadata import PackageNotFoundError, version
from pip._vendor.packaging.requirements import Requirement

for line in open(sys.argv[1], encoding="utf-8"):
    line = line.split("#")[0].strip()
    if not line or Requirement(line).name == sys.argv[2]:
        continue
    try:
        met = version(Requirement(line).name) in Requirement(line).specifier
    except PackageNotFoundError:
        met = False
    if not met:
        print(line)
PYTHON
}

pip_install() {
  .venv/bin/python -m pip install --no-input --disable-pip-version-check $([ -t 1 ] || echo --quiet) "$@" ||
    fail "pip could not install: $*" "its message is above; with another Python, or behind a proxy: PYTHON, PIP_INDEX_URL, HTTPS_PROXY" \
      "libtorch that is here already: HYPERPARALLEL_TORCH=DIR; another index for it: HYPERPARALLEL_TORCH_INDEX=URL"
}

install_python_packages() {
  local requirement requirements
  requirements=$(unmet "$1")
  for requirement in $requirements; do
    say "installing $requirement into .venv"
    case $requirement in
      torch==*) pip_install ${HYPERPARALLEL_TORCH_INDEX:+--index-url "$HYPERPARALLEL_TORCH_INDEX"} "$requirement" ;;
      *) pip_install "$requirement" ;;
    esac
  done
}

[ "${HYPERPARALLEL_SKIP_APT:-0}" = 1 ] || install_debian_packages
make_environment
install_python_packages scripts/requirements.txt
if [ $with_tests = yes ]; then
  install_python_packages scripts/requirements-test.txt
  .venv/bin/python scripts/fetch_test_data.py || fail "scripts/fetch_test_data.py could not fetch the test data; its message is above"
fi
