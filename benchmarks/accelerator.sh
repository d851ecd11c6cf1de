#!/usr/bin/env bash
# The page's sweep on an accelerator, with step times, utilisation and peak memory.
#
#   benchmarks/accelerator.sh OUT TOKENS [MINUTES]
#
# OUT gets runs.jsonl, table.md, init.csv, speed.txt and, where matplotlib is installed, the figures.
# TOKENS is a folder with train.npy and validation.npy: `experiments/tied.py` leaves such a folder,
# tokens-..., beside its rows wherever the tokenizers package is at hand. The machine itself needs
# only Python 3.11 with jax, flax, optax and numpy. What does not fit into MINUTES (default 7) is
# left out; a second call with the same OUT goes on. PRESET=smoke runs through everything on a CPU.
set -euo pipefail

if [ $# -lt 2 ]; then
  echo "usage: $0 OUT TOKENS [MINUTES]" >&2
  exit 2
fi
out=$1 tokens=$2 minutes=${3:-7}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3} preset=${PRESET:-full}
mkdir -p "$out"

"$python" "$here/benchmarks/accelerator.py" --preset "$preset" --data "$tokens" \
  --compilation-cache "$out/compiled" 2>&1 | tee "$out/speed.txt"

hours=$("$python" -c "print(max(0.0, ($minutes * 60 - $SECONDS) / 3600))")
"$python" "$here/experiments/tied.py" --preset "$preset" --data "$tokens" --out "$out" \
  --compilation-cache "$out/compiled" --max-hours "$hours"
echo "done after $SECONDS s"
