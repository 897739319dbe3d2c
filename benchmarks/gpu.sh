#!/usr/bin/env bash
# Runs everything that needs a GPU. One command on a machine with a GPU can run several pieces.
#
#   benchmarks/gpu.sh OUTDIR PIECE [ARGUMENTS] [then PIECE [ARGUMENTS]]...
#
#   test [PYTEST ARGUMENTS]     the tests that run on CUDA (default: -n 8 -m cuda tests)
#   sanitize [OPS]              compute-sanitizer's four tools, on benchmarks/sanitize.py; OPS may
#                               include c_api (kernels.h), algorithms (of recurrent layers),
#                               cell_step, jax
#   bench [RUN.PY ARGUMENTS]    benchmarks/run.py, which writes JSON, a plot and a table
#   mutants [RUN.PY ARGUMENTS]  tests/mutants/run.py, which builds each mutant and runs its tests
#                               (--since COMMIT: only those that changed or whose file changed;
#                               needs the git history)
#   probe FILE.py [ARGUMENTS]   one script, with OUTDIR in its environment
#
# Logs are written to OUTDIR; a short table is printed last. The exit status is 1 if a piece failed.
# $PYTHON is the Python to run. $LIMIT_S limits the time of the whole run, in seconds.
set -uo pipefail

usage() {
  sed -n '2,18s/^# \{0,1\}//p' "$0"
  exit 2
}

[ $# -ge 2 ] || usage
mkdir -p "$1" && OUTDIR=$(cd "$1" && pwd) || exit 2
shift
cd "$(dirname "$0")/.." || exit 2
PYTHON=${PYTHON:-python3}
DEADLINE=$((SECONDS + ${LIMIT_S:-570}))
export OUTDIR PYTHONUNBUFFERED=1 PYTHONPATH="$PWD/python_pkg:$PWD${PYTHONPATH:+:$PYTHONPATH}"
export PATH="$PATH:/usr/local/cuda/bin"
# By default, the build starts as many compilers as fit in free memory. Some virtual machines get
# memory only when they use it, so their free memory is misleading.
export MAX_JOBS=${MAX_JOBS:-$(nproc)}
TABLE=()
STATUS=0

# left SECONDS: prints the number of seconds before the deadline, but at most SECONDS.
left() {
  local seconds=$((DEADLINE - SECONDS))
  [ "$seconds" -gt "$1" ] && seconds=$1
  [ "$seconds" -lt 1 ] && seconds=1
  echo "$seconds"
}

# limited SECONDS COMMAND...: runs the command, and ends it when its time is over.
limited() {
  local seconds
  seconds=$(left "$1")
  shift
  timeout --kill-after=10 "$seconds" "$@"
}

# report NAME STATUS START DETAIL: adds a line to the final table.
report() {
  local word=ok
  [ "$2" -eq 0 ] || { word="FAILED ($2)" && STATUS=1; }
  [ "$2" -eq 124 ] && word="TIME OVER"
  TABLE+=("$(printf '%-20s %-12s %4d s  %s' "$1" "$word" $((SECONDS - $3)) "$4")")
}

# Uses the library that was copied here, if it loads; otherwise builds everything from source. If
# only the extension module treadle._C is missing for this Python, compiles it, which needs a
# compiler and pybind11. Without this module, only treadle.launch_info and calls of the planner fail.
prepare() {
  local start=$SECONDS status=0 how="library carried" suffix
  if [ -e python_pkg/treadle/lib ] && "$PYTHON" -c 'import treadle' 2>"$OUTDIR/build.log"
  then
    suffix=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
    if ! "$PYTHON" -c 'import treadle._C' 2>/dev/null; then
      # shellcheck disable=SC2016,SC2046  # the linker expands $ORIGIN; the includes are many words
      c++ -O2 -std=c++17 -shared -fPIC -fvisibility=hidden -I. -Ikernels/include \
        $("$PYTHON" -m pybind11 --includes) csrc/bindings.cpp \
        python_pkg/treadle/lib/libtreadle_kernels.so -l:libstdc++.so.6 \
        -Wl,-rpath,'$ORIGIN/lib' -o "python_pkg/treadle/_C$suffix" \
        >>"$OUTDIR/build.log" 2>&1 && how+=", _C built" || how+=", no _C"
    fi
  else
    how="all built"
    limited 400 "$PYTHON" -W ignore setup.py -q build_ext --inplace >>"$OUTDIR/build.log" 2>&1 ||
      status=$?
  fi
  if [ "$status" -eq 0 ]; then
    limited 120 "$PYTHON" -c '
import sys, torch, treadle
if "no _C" not in sys.argv[1]:
    treadle._build.bindings()
print(torch.cuda.get_device_name(), "torch", torch.__version__, "treadle", treadle.__version__)
' "$how" >>"$OUTDIR/build.log" 2>&1 || status=$?
    how+=": $(tail -n 1 "$OUTDIR/build.log")"
  fi
  [ "$status" -eq 0 ] || tail -n 30 "$OUTDIR/build.log"
  report build "$status" "$start" "$how"
  return "$status"
}

run_test() {
  local start=$SECONDS status=0
  local arguments=("$@")
  [ $# -gt 0 ] || arguments=(-n 8 -m cuda tests)
  # -v prints each result at once. So the log has the failures even if the run takes too long.
  limited 480 "$PYTHON" -m pytest -v -ra -p no:cacheprovider -p tests.support.failures \
    "${arguments[@]}" \
    >"$OUTDIR/test.log" 2>&1 || status=$?
  if [ "$status" -ne 0 ]; then
    grep -E '(FAILED|ERROR) tests/' "$OUTDIR/test.log" | sort -u | head -n 40
    tail -c 3000 "$OUTDIR/test.log"
  fi
  report test "$status" "$start" "$(tail -n 1 "$OUTDIR/test.log")"
}

# sanitize_with LOGS TOOL OPS [OPTIONS]: runs one tool on sanitize.py, with a separate log.
sanitize_with() {
  local logs=$1 tool=$2 ops=$3
  shift 3
  # shellcheck disable=SC2086  # OPS is empty, or several words
  limited 420 compute-sanitizer --tool "$tool" --error-exitcode 77 --print-limit 40 "$@" \
    "$PYTHON" benchmarks/sanitize.py $ops >"$logs/$tool.log" 2>&1
}

run_sanitize() {
  local start=$SECONDS filter=() logs tool status log ours
  logs=$(mktemp -d)
  # racecheck and synccheck skip kernels of other libraries, on which racecheck is slow. By default,
  # they run only lltm_cell and vector_add, whose kernels use shared memory and barriers. initcheck
  # must see every kernel. Otherwise it reports memory as uninitialised although a skipped kernel
  # wrote this memory.
  for option in --kernel-name --kernel-regex; do
    if compute-sanitizer --help 2>/dev/null | grep -q -- "$option\b"; then
      filter=("$option" kns=treadle)
      break
    fi
  done
  export PYTORCH_NO_CUDA_MEMORY_CACHING=1
  local -A job=()
  sanitize_with "$logs" memcheck "$*" --report-api-errors no & job[memcheck]=$!
  sanitize_with "$logs" initcheck "$*" --report-api-errors no & job[initcheck]=$!
  sanitize_with "$logs" racecheck "${*:-lltm_cell vector_add}" "${filter[@]}" & job[racecheck]=$!
  sanitize_with "$logs" synccheck "${*:-lltm_cell vector_add}" "${filter[@]}" & job[synccheck]=$!
  for tool in memcheck initcheck racecheck synccheck; do
    status=0
    wait "${job[$tool]}" || status=$?
    log="$logs/$tool.log"
    ours=$(grep -c '^========= .*\bat .*treadle::' "$log")
    # initcheck may also report kernels of other libraries, which do not count.
    [ "$tool" = initcheck ] && [ "$status" -eq 77 ] && [ "$ours" -eq 0 ] && status=0
    # If sanitize.py did not reach its end, the result says nothing.
    [ "$status" -eq 0 ] && ! grep -q '^sanitize: done' "$log" && status=3
    [ "$status" -eq 0 ] || head -c 1500 "$log"
    report "$tool" "$status" "$start" \
      "$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$log" | tail -n 1); in ours: $ours"
  done
  unset PYTORCH_NO_CUDA_MEMORY_CACHING
  tail -n +1 "$logs"/*.log >"$OUTDIR/sanitize.log"
}

run_bench() {
  local start=$SECONDS status=0
  # Baselines that compile extensions get a new cache folder, so that they load no stale code. A
  # caller that has compiled them gives its folder.
  TORCH_EXTENSIONS_DIR=${TORCH_EXTENSIONS_DIR:-$(mktemp -d)}
  export TORCH_EXTENSIONS_DIR
  limited 560 "$PYTHON" benchmarks/run.py --output "$OUTDIR" "$@" 2>&1 | tee "$OUTDIR/bench.log" ||
    status=$?
  report bench "$status" "$start" "$(tail -n 1 "$OUTDIR/bench.log")"
}

run_mutants() {
  local start=$SECONDS status=0
  # The runner gets the list of files from git.
  git rev-parse --git-dir >/dev/null 2>&1 || { git init -q && git add -A; }
  limited 560 "$PYTHON" tests/mutants/run.py "$@" >"$OUTDIR/mutants.log" 2>&1 || status=$?
  tail -c 7000 "$OUTDIR/mutants.log"
  report mutants "$status" "$start" "$(tail -n 1 "$OUTDIR/mutants.log")"
}

run_probe() {
  local start=$SECONDS status=0 log
  [ $# -ge 1 ] || usage
  log="$OUTDIR/probe-$(basename "$1" .py).log"
  limited 480 "$PYTHON" "$@" 2>&1 | tee "$log" || status=$?
  report "probe $(basename "$1")" "$status" "$start" ""
}

run_piece() {
  local piece=$1
  shift
  case $piece in
    test) run_test "$@" ;;
    sanitize) run_sanitize "$@" ;;
    bench) run_bench "$@" ;;
    mutants) run_mutants "$@" ;;
    probe) run_probe "$@" ;;
    *) echo "no such piece: $piece" >&2 && STATUS=1 ;;
  esac
}

main() {
  local words=()
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
  if prepare; then
    for word in "$@" "then"; do
      if [ "$word" != "then" ]; then
        words+=("$word")
      elif [ ${#words[@]} -gt 0 ]; then
        run_piece "${words[@]}"
        words=()
      fi
    done
  fi
  printf '\n'
  printf '%s\n' "${TABLE[@]}"
}

main "$@" 2>&1
exit "$STATUS"
