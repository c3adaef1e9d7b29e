#!/usr/bin/env bash
# Set EdgeSpec up in ./.venv, without gigabytes of CUDA on a machine that has no NVIDIA GPU. On Windows this
# runs in Git Bash; install.ps1 does the same in PowerShell.
#
#   ./install.sh              what a user needs
#   ./install.sh test         and what the tests need
#   ./install.sh dev          and ruff and mypy
#   ./install.sh plot cuda    or any extras of pyproject.toml
#
# Environment:
#   PYTHON=python3.12         the interpreter for a new environment (3.10 or later)
#   EDGESPEC_VENV=DIR         set up this virtual environment instead of .venv
#   EDGESPEC_TORCH="..."      arguments for `pip install` that give the torch you want
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

say() { printf '%s\n' "$*" >&2; }
fail() { say "install.sh: $*"; exit 1; }

extras=$(IFS=,; echo "$*")
[[ $extras =~ ^[a-z0-9,]*$ ]] || fail "'$*' is not a list of extras (see [project.optional-dependencies] in pyproject.toml)"
venv=${EDGESPEC_VENV:-.venv}
place() {  # of the environment's programs: Windows' have a folder Scripts
  programs=$venv/bin python=$venv/bin/python
  [[ ! -e $venv/Scripts/python.exe ]] || programs=$venv/Scripts python=$venv/Scripts/python.exe
}
place

# Nothing to do when the same sources asked for the same extras before, with the same compiler or none; unless the
# kernels are gone, or another environment of this checkout has built them since, maybe of other sources.
compiler=$(command -v "${CC:-cc}" || true)
digest=$(cat pyproject.toml install.sh kernels/native/* <(printf '%s' "$PWD" "${EDGESPEC_TORCH:-}" "$compiler") | cksum | cut -d' ' -f1)
stamp=$venv/.edgespec-$digest${extras:+-$extras}
library_name='import sysconfig; print("kernels/_native" + sysconfig.get_config_var("EXT_SUFFIX"))'
if [[ -e $stamp ]] &&
  library=$("$python" -I -c "$library_name; import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ('torch', 'edgespec'))))") &&
  [[ ! $compiler || ( -e $library && ! $library -nt $stamp ) ]]
then
  say "EdgeSpec is set up in $venv: $programs/edgespec"
  exit 0
fi

if [[ ! -x $python ]]; then
  for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.10 python py}; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then base=$candidate; break; fi
  done
  [[ ${base:-} ]] || fail "needs Python 3.10 or later; ${PYTHON:-python3} is not. Name one: PYTHON=/path/to/python3.12 ./install.sh"
  say "Making $venv with $("$base" --version)"
  "$base" -m venv "$venv" || { rm -rf "$venv"; fail "'$base -m venv' failed (Debian, Ubuntu: apt install python3-venv)"; }
  place
fi
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || fail "$venv has $("$python" --version); EdgeSpec needs 3.10 or later. Remove $venv and run again"

export PIP_DISABLE_PIP_VERSION_CHECK=1
pip() { "$python" -m pip -qq "$@"; }  # errors only
at_least() {  # PACKAGE MAJOR MINOR
  "$python" -I -c 'import importlib.metadata as m, sys; name, *least = sys.argv[1:]
sys.exit(tuple(map(int, m.version(name).split(".")[:2])) < tuple(map(int, least)))' "$@" 2>/dev/null
}

"$python" -m pip --version >/dev/null 2>&1 || "$python" -m ensurepip >/dev/null 2>&1 || fail "$venv has no pip; remove it and run again"
at_least pip 23 0 || pip install --upgrade "pip>=23" || fail "could not upgrade pip (see above)"
pip install "setuptools>=77" || fail "could not install setuptools (see above); is there a network?"

nvidia() { command -v nvidia-smi >/dev/null || [[ -e /dev/nvidia0 || -e /etc/nv_tegra_release ]]; }

# On Linux without a GPU: what `pip install torch` finds may be a CPU build (a mirror, aarch64), or it may
# bring CUDA along. Ask pip first; only in the second case fetch the CPU build, which uv knows where to find.
install_torch() {
  if [[ ${EDGESPEC_TORCH:-} ]]; then
    local arguments; read -ra arguments <<<"$EDGESPEC_TORCH"
    say "Installing torch: pip install $EDGESPEC_TORCH"
    pip install "${arguments[@]}"
    return
  fi
  if nvidia; then
    say "Installing torch with CUDA (an NVIDIA GPU is present)"
    pip install "torch>=2.6"
    return
  fi
  local report torch; report=$(mktemp)
  trap 'rm -f "$report"' RETURN
  for torch in "torch==2.13.0" "torch>=2.6"; do
    pip install --dry-run --report "$report" "$torch" 2>/dev/null && break
    : >"$report"
  done
  [[ -s $report ]] || { say "pip finds no torch for $("$python" --version)"; return 1; }
  if grep -Eq '"name": "(nvidia-[a-z0-9-]+|cuda-[a-z0-9-]+)"' "$report"; then
    say "Installing torch for CPU (pip would bring CUDA; fetching the CPU build with uv)"
    pip install uv && "$python" -m uv --quiet pip install --python "$python" --torch-backend=cpu "$torch"
  else
    say "Installing torch for CPU"
    pip install "$torch"
  fi
}
if ! at_least torch 2 6; then
  install_torch || fail "could not install torch (see above). Give pip's arguments yourself, for example
  EDGESPEC_TORCH='torch==2.13.0 --find-links /path/to/wheels' ./install.sh $*"
fi

say "Installing EdgeSpec${extras:+ with $extras}"
library=$("$python" -I -c "$library_name")
rm -f "$library"  # which may be of other sources
pip install --no-build-isolation --editable ".${extras:+[$extras]}" || fail "could not install EdgeSpec (see above)"
[[ -e $library ]] ||
  say "No C compiler was found, or it failed: low-bit weights will be multiplied by torch, tens of times slower (Debian, Ubuntu: apt install gcc; then run this again)"
find "$venv" -maxdepth 1 -name '.edgespec-*' ! -name ".edgespec-$digest*" -delete
if [[ -e $library || ! $compiler ]]; then touch "$stamp"; fi  # what failed is tried again
say "Ready: $programs/edgespec"
