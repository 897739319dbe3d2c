#!/usr/bin/env bash
# Tests a wheel the way users install it: in a fresh environment for each torch, without a compiler,
# a toolkit or our sources.
# Usage: tools/check_wheel.sh WHEEL PYTHON..., where each PYTHON has torch, pytest and pytest-xdist.
# `LAWS` selects the tests of invariants (tests/laws): gradients (the default), few (third
# derivatives, which run every op and its derivatives), or all, which needs the packages of
# requirements-dev.txt.
set -euo pipefail

wheel=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
shift
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset PYTHONPATH CUDA_HOME CUDA_PATH
export PIP_DISABLE_PIP_VERSION_CHECK=1

source "$root/tools/fresh_environment.sh"

# The tree has only the tests, so treadle is imported from where it was installed.
mkdir "$work/tree"
(cd "$root" && git ls-files -z tests pyproject.toml | tar c --null -T -) | tar x -C "$work/tree"

# every_law HOME: runs tests/laws with compilers on the PATH, which torch.compile needs. The tree
# has the installed package in place of python_pkg.
every_law() {
  rm -rf "$work/whole"
  mkdir "$work/whole"
  (cd "$root" && git ls-files -z ':!python_pkg' | tar c --null -T -) | tar x -C "$work/whole"
  ln -s "$1"/lib/python*/site-packages "$work/whole/python_pkg"
  (cd "$work/whole" && "$1/bin/python" -m pytest -q -p no:cacheprovider -n auto tests/laws) \
    >"$work/laws.log" || { tail -n 40 "$work/laws.log"; return 1; }
  tail -n 1 "$work/laws.log"
}

for python in "$@"; do
  name=$("$python" -c 'import sys, torch; print(sys.version_info[1], torch.__version__)')
  say "Python 3.${name% *}, torch ${name#* }"
  home=$work/${name// /-}
  fresh_environment "$python" "$home"
  "$home/bin/python" -m pip install -q --no-index "$wheel"
  # An installed package needs nothing else on the PATH.
  run=(env PATH="$home/bin" "$home/bin/python")
  ! PATH="$home/bin" command -v c++ gcc cc nvcc ninja || fail "a compiler is in reach"
  found=$(cd "$work" && "${run[@]}" -c 'import treadle; print(treadle.__file__)')
  [[ $found == "$home"/* ]] || fail "treadle was imported from $found"
  (cd "$work" && "${run[@]}" -m treadle | tail -n 1)
  # Tests the wheel's library for torch without CUDA. The torch here only pretends to have no CUDA.
  (cd "$work" && "${run[@]}" -c 'import torch
torch.version.cuda = None
from treadle import __main__, _build
assert "-cpu/" in _build.library_path(), _build.library_path()
raise SystemExit(__main__.main())' | tail -n 1)
  case ${LAWS:-gradients} in
    all) every_law "$home" ;;
    few) choice=(-k third_derivative) ;;&
    gradients) choice=(-n auto) ;;&
    few | gradients)
      (cd "$work/tree" && "${run[@]}" -m pytest -q -p no:cacheprovider "${choice[@]}" \
        tests/laws/test_gradients.py | tail -n 1) ;;
    *) fail "LAWS must be all, few or gradients, got $LAWS" ;;
  esac
  last=$home
done

# If another torch is installed into an environment, the installed wheel must work with it.
if [ $# -gt 1 ]; then
  say "the last environment with the first one's torch"
  see_packages_of "$1" "$last"
  (cd "$work" && env PATH="$last/bin" "$last/bin/python" -m treadle | tail -n 1)
fi

say "the wheel works with every torch that was given"
