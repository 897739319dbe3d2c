#!/usr/bin/env bash
# Tries every way of installing treadle in fresh environments: the commands of README.md,
# `pip install -e .`, and `python -m build` (an sdist, then the wheel from it). Each time treadle is
# imported from outside the tree.
# Usage: tools/check_install.sh PYTHON, which must have torch and the packages of
# requirements-dev.txt.
set -euo pipefail

python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONWARNINGS=ignore
unset PYTHONPATH TREADLE_BUILD_DIR
export PATH="$(dirname "$python"):$PATH"

source "$root/tools/fresh_environment.sh"
environment() { fresh_environment "$python" "$work/$1"; }

# Copies the objects of this tree, if there are any in build/native, into a fresh tree, so that ninja
# compiles only what has changed or is missing.
begin_with_objects() {
  [ -d "$root/build/native" ] || return 0
  mkdir "$1/build"
  cp -a "$root/build/native" "$1/build/native"
}

# use ENVIRONMENT FOLDER: imports treadle from outside the tree. It must come from FOLDER, and every
# self-test must pass.
use() {
  local found
  found=$(cd "$work" && "$1/bin/python" -c 'import treadle; print(treadle.__file__)')
  [[ $found == "$2"/* ]] || fail "treadle was imported from $found, not from $2"
  (cd "$work" && "$1/bin/python" -m treadle | tail -n 1)
  (cd "$work" && "$1/bin/python" -c 'from treadle import _build; _build.bindings()')
  check_binaries "$(dirname "$found")"
}

# Checks that no binary searches folders of the build machine, and that no library links against Python.
check_binaries() {
  local file path
  for file in "$1"/lib/*.so "$1"/lib/*/*.so "$1"/_C*.so; do
    path=$(readelf -d "$file" | sed -nE 's/.*\((RPATH|RUNPATH)\).*\[(.*)\]/\2/p')
    [[ -z $path || $path == '$ORIGIN' || $path == '$ORIGIN/'* ]] || fail "$file looks for libraries in $path"
    if [[ $file == "$1"/lib/* ]] && readelf -d "$file" | grep -q 'NEEDED.*libpython'; then
      fail "$file links Python"
    fi
  done
}

asks_for() { grep -E '^Requires-Dist: torch' "$1" || fail "$1 asks for no torch"; }

mkdir "$work/tree"
(cd "$root" && git ls-files -z -co --exclude-standard | tar c --null -T - --ignore-failed-read) |
  tar x -C "$work/tree"
begin_with_objects "$work/tree"
minor=$("$python" -c 'import torch; print(".".join(torch.__version__.split(".")[:2]))')

say "the commands of README.md, in a fresh tree"
environment plain
printf '#!/bin/sh\nexec "%s" -m pip "$@"\n' "$work/plain/bin/python" >"$work/plain/bin/pip"
chmod +x "$work/plain/bin/pip"
install_commands "$work/tree/README.md" >"$work/commands"
grep -q 'pip install' "$work/commands" || fail "README.md has no command that installs"
(cd "$work/tree" && PATH="$work/plain/bin:$PATH" bash -eux "$work/commands") >"$work/log" 2>&1 ||
  { cat "$work/log"; fail "a command of README.md failed"; }
use "$work/plain" "$work/plain/lib"

say "pip install --no-build-isolation -e ."
environment editable
"$work/editable/bin/python" -m pip install -q --no-build-isolation -e "$work/tree"
use "$work/editable" "$work/tree/python_pkg"

say "python -m build --no-isolation"
# pack WHAT TREE: builds an sdist or a wheel from TREE.
pack() {
  (cd "$2" && "$python" -m build --no-isolation "--$1" --outdir "$work/dist" . >"$work/log" 2>&1) ||
    { cat "$work/log"; fail "python -m build --$1 failed"; }
}
rm -rf "$work/tree/build" "$work/tree"/python_pkg/treadle/{*.so,lib}
pack sdist "$work/tree"
mkdir "$work/sdist" "$work/wheel"
tar xzf "$work"/dist/*.tar.gz -C "$work/sdist" --strip-components 1
begin_with_objects "$work/sdist"
pack wheel "$work/sdist"
ls -l "$work/dist"
"$python" -m zipfile -e "$work"/dist/*.whl "$work/wheel"
[[ $(asks_for "$work/sdist/PKG-INFO") == "Requires-Dist: torch>=2.11" ]] ||
  fail "the sdist asks for one torch: $(asks_for "$work/sdist/PKG-INFO")"
[[ $(asks_for "$work"/wheel/*.dist-info/METADATA) == "Requires-Dist: torch==$minor.*" ]] ||
  fail "the wheel does not ask for torch $minor: $(asks_for "$work"/wheel/*.dist-info/METADATA)"
environment wheel-env
"$work/wheel-env/bin/python" -m pip install -q "$work"/dist/*.whl
use "$work/wheel-env" "$work/wheel-env/lib"

say "all ways of installing work"
