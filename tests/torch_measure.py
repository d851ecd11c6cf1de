"""Runs torch models on fresh inputs and measures what they compute."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

import anyinit.torch


def moment(tensor: torch.Tensor) -> float:
    """Second moment E[x²], computed in float64."""
    return float(tensor.detach().double().square().mean())


def rms(tensor: torch.Tensor) -> float:
    """Root mean square of a weight, its all-zero rows left out."""
    rows = tensor.detach().double().reshape(tensor.shape[0], -1)
    return float(rows[(rows != 0).any(1)].square().mean() ** 0.5)


def tokens(seed: int, vocab: int, *shape: int) -> torch.Tensor:
    """Uniform tokens."""
    return torch.randint(0, vocab, shape, generator=torch.Generator().manual_seed(seed))


def normal(seed: int, *shape: int) -> torch.Tensor:
    """Unit normal signal."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(1000 + seed))


def rows(plan: Any) -> dict[str, Any]:
    """Rows of a plan by every name of theirs."""
    return {name: row for row in plan.weights for name in (row.path, *row.aliases)}


def reasons(plan: Any) -> dict[str, str]:
    """Names of the reasons why parameters are left alone."""
    return {left.path: left.reason.name for left in plan.left_alone}


def assert_complete(plan: Any, model: torch.nn.Module) -> None:
    """Every parameter has a row, is another name of one that has, or is listed as left alone."""
    named = [name for row in plan.weights for name in (row.path, *row.aliases)]
    named += [left.path for left in plan.left_alone]
    assert len(named) == len(set(named))
    own = {name.replace("_orig_mod.", "") for name, _ in model.named_parameters()}
    assert own <= set(named)


@contextlib.contextmanager
def _captured(model: torch.nn.Module, names: list[str]) -> Iterator[dict[str, list[float]]]:
    found: dict[str, list[float]] = {name: [] for name in names}

    def hook(name: str) -> Callable[..., None]:
        def keep(module: Any, args: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) else output
            found[name].append(moment(first))

        return keep

    modules = dict(model.named_modules())
    handles = [modules[name].register_forward_hook(hook(name)) for name in names]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def moments(
    make: Callable[[], torch.nn.Module],
    inputs: Callable[[int], Any],
    pick: Callable[[Any], torch.Tensor] = lambda output: output,
    inside: tuple[str, ...] = (),
    seeds: int = 3,
) -> dict[str, float]:
    """Second moments after `init_`, averaged over seeds: of the output as `""`, of modules inside.

    `inputs(seed)` gives positional arguments, or a dictionary of keyword arguments.
    """
    measured: dict[str, list[float]] = {}
    for seed in range(seeds):
        torch.manual_seed(seed)
        model = make()
        args, kwargs = _split(inputs(0))
        plan = anyinit.torch.init_(model, *args, **kwargs)
        assert_complete(plan, model)
        args, kwargs = _split(inputs(seed + 1))
        with torch.no_grad(), _captured(model, list(inside)) as found:
            output = pick(model(*args, **kwargs))
        measured.setdefault("", []).append(moment(output))
        for name, values in found.items():
            measured.setdefault(name, []).extend(values)
    return {name: sum(values) / len(values) for name, values in measured.items()}


def _split(given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return ((), given) if isinstance(given, dict) else (tuple(given), {})
