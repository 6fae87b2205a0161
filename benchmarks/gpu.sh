#!/bin/sh
# On a machine with a CUDA device, in at most 30 minutes: the tests marked `gpu`, then each paper's headlines beside plain
# decoding at the shape of a 1.1B model in bfloat16, with joules from NVML (extras bench and eval). Results are kept for
# docs/papers.md.
#   benchmarks/gpu.sh              more arguments go to `python -m benchmarks.papers`, such as --data DIR
#   benchmarks/gpu.sh --dry-run    the same commands on a CPU, the embedded pair, two items: nothing is kept
set -u
cd "$(dirname "$0")/.."
python="${PYTHON:-.venv/bin/python}"
[ -x "$python" ] || { echo "error: there is no $python; run scripts/setup, or name a Python in PYTHON" >&2; exit 2; }
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"

if [ "${1:-}" = --dry-run ]; then
    shift
    out=$(mktemp -d)
    trap 'rm -rf "$out"' EXIT
    options="--pair embedded --dtype bfloat16 --device cpu --items 2 --seeds 1 --max-new-tokens 4 --steps 2"
    tests=--collect-only minutes=7
else
    "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
        { echo "error: PyTorch sees no CUDA device; try benchmarks/gpu.sh --dry-run" >&2; exit 2; }
    out=gpu-results
    options="--pair grown-22x2048 --dtype bfloat16 --device cuda --items 30 --seeds 1 --name grown-22x2048-gpu --keep"
    tests=-q minutes=7
fi

status=0
timeout 300 "$python" -m pytest -m gpu "$tests" -p no:cacheprovider tests || status=1
# shellcheck disable=SC2086 # options are words
for each in "dsbd beams" "mcsd trees" "eesd methods"; do
    "$python" -m benchmarks.papers "${each% *}" --part "${each#* }" --minutes "$minutes" $options \
        --out "$out/${each% *}" "$@" || status=1
done
exit $status
