"""Print how long `import anyinit` takes beside `import flax, optax`.

Each is timed in several new processes, alternating, in one run.

    python benchmarks/import_time.py [--processes 7]
"""

import argparse
import os
import statistics
import subprocess
import sys

STATEMENTS = {"flax, optax": "import flax, optax", "anyinit": "import anyinit"}


def seconds(statement: str) -> float:
    """Time one statement in a new process, the interpreter's own start left out."""
    code = (
        f"import time; start = time.perf_counter(); {statement}; print(time.perf_counter() - start)"
    )
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
    )
    return float(done.stdout)


def main() -> None:
    """Time both and print the medians and their ratio."""
    parser = argparse.ArgumentParser(description="Time `import anyinit`.")
    parser.add_argument("--processes", type=int, default=7, help="new processes for each")
    processes = parser.parse_args().processes
    for statement in STATEMENTS.values():  # fills the file cache and writes byte code
        seconds(statement)
    times: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    for _ in range(processes):
        for name, statement in STATEMENTS.items():
            times[name].append(seconds(statement))
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, values in times.items():
        print(f"import {name:12} {medians[name]:.3f} s  ({min(values):.3f} to {max(values):.3f})")
    print(f"ratio {medians['anyinit'] / medians['flax, optax']:.2f}")


if __name__ == "__main__":
    main()
