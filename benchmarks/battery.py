"""The battery of Flax models as a table: what was planned against what the model computes.

python benchmarks/battery.py             # writes docs/battery.md
python benchmarks/battery.py lstm t5     # prints the rows of some models only
"""

import argparse
import pathlib
import statistics
import sys
import time
from typing import Any

import jax
import numpy as np

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from breadth_models import BATTERY, FAMILIES  # noqa: E402
from flat_run import Measured, measured  # noqa: E402
from measure import keys  # noqa: E402

import anyinit  # noqa: E402

TIMES = 3

HEAD = """# The battery

Written by `python benchmarks/battery.py`. Every model of `tests/breadth_models_*.py` is planned
from shapes, drawn, rescaled and run on fresh inputs with three seeds. *Deviation* is how far the
measured second moment at a site is from the plan's prediction (1.06 is 6%, in either direction;
behind an attention average only what lies above the prediction counts). *Outputs* are the second
moments of the model's outputs, wanted at 1; of several, the one farthest from 1. *Stream* is the
second moment of the residual stream, first and largest. *Ratio* is the time of `anyinit.flax.plan`
over that of `jax.make_jaxpr` of the same function, both warm, the best of {times}.

{summary}

| model | sites | median deviation | worst deviation | outputs | stream | plan | ratio |
|---|---|---|---|---|---|---|---|
"""


def plan_and_trace_seconds(name: str) -> tuple[float, float]:
    """Best times of a plan and of a trace of the same function."""
    case = BATTERY[name]
    options, inputs = dict(case.options), case.inputs(0)
    variables = jax.eval_shape(lambda: case.model.init(keys(0), *inputs, **options))
    mutable = [collection for collection in variables if collection != "params"] or False
    streams = {"dropout": keys(0)["dropout"]}
    leaves, structure = jax.tree.flatten(inputs)
    arrays = [leaf for leaf in leaves if hasattr(leaf, "dtype")]

    def apply(variables: Any, arrays: Any) -> Any:
        given = iter(arrays)
        filled = [next(given) if hasattr(leaf, "dtype") else leaf for leaf in leaves]
        arguments = jax.tree.unflatten(structure, filled)
        return case.model.apply(variables, *arguments, rngs=streams, mutable=mutable, **options)

    planned, traced = [], []
    for _ in range(TIMES):
        start = time.perf_counter()
        # A new function each time: JAX keeps the traces of functions that it has seen.
        jax.make_jaxpr(lambda *arguments: apply(*arguments))(variables, arrays)
        middle = time.perf_counter()
        anyinit.flax.plan(case.model, *inputs, **options)
        planned.append(time.perf_counter() - middle)
        traced.append(middle - start)
    return min(planned), min(traced)


def row(name: str, found: Measured, seconds: tuple[float, float]) -> str:
    """One line of the table."""
    ratios = [site.ratio for site in found.sites] or [1.0]
    output = max(found.outputs, key=lambda moment: abs(np.log(moment))) if found.outputs else None
    streams = [f"{start:.2f} → {end:.2f}" for start, end in found.streams]
    cells = (
        name.replace("_", " "),
        str(len(found.sites)),
        f"{np.median(ratios):.3f}",
        f"{max(ratios):.2f}",
        "" if output is None else f"{output:.2f}",
        max(streams, key=len, default=""),
        f"{1000 * seconds[0]:.0f} ms",
        f"{seconds[0] / seconds[1]:.1f}",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure the models asked for, and write or print their table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help="names of models; all where none is given")
    chosen = parser.parse_args().models
    lines, ratios, times = [], [], []
    for family, cases in FAMILIES.items():
        names = [name for name in cases if not chosen or name in chosen]
        if names:
            lines.append(f"| **{family}** | | | | | | | |")
        for name in names:
            case = BATTERY[name]
            try:
                found = measured(case.model, case.inputs, **case.options)
                seconds = plan_and_trace_seconds(name)
            except Exception as error:
                # A model that fails is a row of the table, not the end of the run.
                text = str(error).splitlines()[0][:60]
                lines.append(f"| {name.replace('_', ' ')} | {type(error).__name__}: {text} |")
                continue
            lines.append(row(name, found, seconds))
            ratios += [site.ratio for site in found.sites]
            times.append(seconds[0] / seconds[1])
            print(lines[-1], flush=True)
    summary = (
        f"{len(times)} models, {len(ratios)} sites: median deviation {np.median(ratios):.3f}; "
        f"median ratio {statistics.median(times):.1f} (from {min(times):.1f} to {max(times):.1f})."
    )
    print(summary)
    if not chosen:
        text = HEAD.format(times=TIMES, summary=summary) + "\n".join(lines) + "\n"
        (ROOT / "docs" / "battery.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
