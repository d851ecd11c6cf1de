"""The coordinate check, on the study's network and on small ones."""

from __future__ import annotations

import builtins
import functools
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from measure import normal, tokens

import anyinit
from anyinit import CoordinateCheck

sys.path.append(str(Path(__file__).resolve().parent.parent))

from experiments.study.model import GPT
from experiments.study.protocol import SCHEMES

WIDTHS, VOCAB = (64, 256), 256
TABLE = "table/embedding, start of a stream"
LOGITS = "output"


@functools.cache
def study(name: str, table_alone: bool = False) -> CoordinateCheck:
    """The check of a scheme of the study; where asked, the table alone is trained."""
    scheme = SCHEMES[name]

    def make_model(width: int) -> GPT:
        return GPT(VOCAB, width, 1, True, scheme.lookup(width), scheme.logits(width))

    def initialize(model: GPT, key: Any, idx: jax.Array) -> Any:
        drawn = model.init(key, idx)["params"]
        table = drawn["table"]["embedding"] * scheme.table_std(model.width)
        plan = anyinit.flax.plan(model, idx)
        return anyinit.Variables({"params": {**drawn, "table": {"embedding": table}}}, plan=plan)

    def optimizer(variables: Any) -> optax.GradientTransformation:
        # With a small ε, so that the first step moves every entry by the rate alone.
        adam = functools.partial(optax.adam, eps=1e-15)
        rule = adam(1e-3)
        if scheme.matched:
            rule = anyinit.optax_partition(variables, adam, learning_rate=1e-3)
        frozen = {name: name != "table" for name in variables["params"]}
        return optax.chain(rule, optax.masked(optax.set_to_zero(), frozen)) if table_alone else rule

    batch = tokens(0, VOCAB, (8, 16))
    return anyinit.coordinate_check(
        make_model, WIDTHS, batch, optimizer, steps=1, initialize=initialize
    )


def growth(check: CoordinateCheck, site: str, step: int) -> float:
    """Exponent of the width in the second moment of a site, or of its change."""
    found = np.log(check.at(site, step))
    return float(np.polyfit(np.log(check.widths), found, 1)[0])


@pytest.mark.standard_promotion
def test_logits_of_scheme_a_grow_with_width_at_init() -> None:
    """Each logit sums d products of unit variance; that of the token itself is d."""
    expected = [width + width**2 / VOCAB for width in WIDTHS]
    assert study("A").at(LOGITS, 0) == pytest.approx(expected, rel=0.3)
    assert growth(study("A"), LOGITS, 0) > 0.8
    assert study("A").spread(LOGITS, 0) > 3


@pytest.mark.standard_promotion
@pytest.mark.parametrize("name", ["C", "D", "D′"])
def test_logits_of_the_others_are_flat_at_init(name: str) -> None:
    assert study(name).spread(LOGITS, 0) < 1.5
    assert abs(growth(study(name), LOGITS, 0)) < 0.3


@pytest.mark.standard_promotion
def test_the_first_adam_step_moves_the_table_of_d_by_a_root_of_the_width_less() -> None:
    """Adam moves every entry by the rate; C multiplies it by √d, D not, D′ has √d of the rate."""
    moved = {name: np.sqrt(study(name).at(TABLE, 1)) for name in ("C", "D", "D′")}
    np.testing.assert_allclose(moved["D′"] / moved["C"], 1.0, rtol=0.03)
    np.testing.assert_allclose(moved["C"] / moved["D"], np.sqrt(WIDTHS), rtol=0.03)


@pytest.mark.standard_promotion
def test_logits_of_d_lag_by_a_root_of_the_width_as_far_as_the_table_moves_them() -> None:
    change = {name: np.sqrt(study(name, True).at(LOGITS, 1)) for name in ("C", "D", "D′")}
    np.testing.assert_allclose(change["D′"] / change["C"], 1.0, rtol=0.1)
    np.testing.assert_allclose(change["C"] / change["D"], np.sqrt(WIDTHS), rtol=0.1)


@pytest.mark.standard_promotion
def test_all_weights_together_move_the_logits_of_c_and_d_prime_alike() -> None:
    change = {name: np.sqrt(study(name).at(LOGITS, 1)) for name in ("C", "D", "D′")}
    np.testing.assert_allclose(change["D′"] / change["C"], 1.0, rtol=0.05)
    assert all(change["D"] < 0.95 * change["C"])


def dense(width: int) -> nn.Module:
    return nn.Sequential([nn.Dense(width), nn.relu, nn.Dense(8)])


def checked(**options: Any) -> CoordinateCheck:
    x, y = normal(0, (32, 16)), normal(1, (32, 8))
    return anyinit.coordinate_check(dense, [32, 128], (x, y), optax.sgd(0.1), **options)


def test_records_are_tidy() -> None:
    check = checked(steps=2, seeds=2)
    assert len(check.records) == 2 * 2 * 3 * 2
    assert {r.step for r in check.records} == {0, 1, 2}
    assert all(r.change == 0 for r in check.records if r.step == 0)
    assert all(r.change > 0 for r in check.records if r.step and r.site == "output")
    first = [r.moment for r in check.records if (r.site, r.step, r.width) == ("output", 0, 32)]
    assert check.at("output", 0)[0] == pytest.approx(sum(first) / 2)


def test_changes_are_those_of_training_by_hand() -> None:
    x, y = normal(0, (32, 16)), normal(1, (32, 8))
    model = dense(32)
    params = anyinit.flax.init(model, jax.random.key(0), x)["params"]

    def loss(params: Any) -> jax.Array:
        return jnp.mean(jnp.square(model.apply({"params": params}, x) - y))

    after = jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))
    outputs = [model.apply({"params": tree}, x) for tree in (params, after)]
    expected = float(jnp.mean(jnp.square(outputs[1] - outputs[0])))
    assert checked(steps=1).at("output", 1)[0] == pytest.approx(expected, rel=1e-4)


def test_table_has_a_spread_and_says_what_good_looks_like() -> None:
    lines = str(study("A")).splitlines()
    assert lines[0].startswith("anyinit coordinate check: E[x²] of every site before the first")
    header = next(line for line in lines if line.startswith("site"))
    assert header.split("  ")[0] == "site"
    assert [part for part in header.split() if "spread" in part] == ["spread", "spread"]
    assert "d=64" in header and "Δ d=256" in header
    row = next(line for line in lines if line.startswith("output"))
    assert "↑" in row
    text = " ".join(str(study("A")).split())
    assert "What good looks like" in text and "near 1" in text
    assert "Unlike at the start:" in text


def test_flat_sites_get_no_arrow() -> None:
    row = next(line for line in str(study("C")).splitlines() if line.startswith("output"))
    start, _, _ = row.partition("Δ")
    assert "↑" not in " ".join(start.split()[:5])


def test_an_initializer_of_ones_own_is_used() -> None:
    def zeros(model: nn.Module, key: Any, x: jax.Array) -> Any:
        return jax.tree.map(jnp.zeros_like, model.init(key, x))

    assert checked(steps=1, initialize=zeros).at("output", 0) == (0.0, 0.0)
    assert checked(steps=1, initialize=zeros).spread("output", 0) == 1.0


@pytest.mark.standard_promotion
def test_models_with_running_statistics_and_dropout() -> None:
    class Model(nn.Module):
        width: int

        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            x = nn.BatchNorm(use_running_average=False)(nn.Dense(self.width)(x))
            return nn.Dense(4)(nn.Dropout(0.1, deterministic=False)(nn.relu(x)))

    x, y = normal(0, (32, 16)), jnp.arange(32) % 4
    check = anyinit.coordinate_check(Model, [16, 64], (x, y), optax.adam(1e-2), steps=1)
    assert all(math.isfinite(record.change) for record in check.records)


Wrong = Callable[[], Any]
X = np.ones((4, 8), np.float32)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((dense, [32], (X, X), optax.sgd(1.0)), {}, "two or more different ones, got .32."),
        ((dense, [32, 64], (X, X), optax.sgd(1.0)), {"steps": 0}, "steps=0"),
        ((dense, [32, 64], X, optax.sgd(1.0)), {}, "Pass .inputs, targets."),
        ((dense, [32, 64], (X, X, X), optax.sgd(1.0)), {}, "tuple of 3"),
    ],
)
def test_wrong_arguments(arguments: Any, options: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        anyinit.coordinate_check(*arguments, **options)


def test_models_that_differ_in_more_than_width() -> None:
    def deeper(width: int) -> nn.Module:
        return nn.Sequential([nn.Dense(8) for _ in range(width // 32)])

    batch = (normal(0, (8, 16)), normal(1, (8, 8)))
    with pytest.raises(ValueError, match="has other sites than that of width 32"):
        anyinit.coordinate_check(deeper, [32, 64], batch, optax.sgd(1.0))


def test_divergence_is_an_error() -> None:
    batch = (normal(0, (8, 16)), normal(1, (8, 8)))
    with pytest.raises(FloatingPointError, match="Lower the learning rate"):
        anyinit.coordinate_check(dense, [32, 64], batch, optax.sgd(1e20), steps=4)


def test_figure_has_a_panel_for_start_and_change(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure = checked(steps=2).plot()
    start, change = figure.axes
    assert start.get_title() == "before the first step"
    assert change.get_title() == "change after 2 steps"
    assert len(start.lines) == len(change.lines) == 2
    np.testing.assert_allclose(start.lines[-1].get_ydata(), checked(steps=2).at("output", 0))
    figure.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_missing_matplotlib_is_said_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'anyinit-jax\[plot\]'"):
        checked(steps=1).plot()


def test_an_instance_is_no_function_of_the_width() -> None:
    with pytest.raises(TypeError, match="lambda width: Model"):
        anyinit.coordinate_check(nn.Dense(8), (8, 16), normal(0, (4, 8)), optax.adam(1e-3))
