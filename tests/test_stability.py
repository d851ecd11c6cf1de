"""What a plan says about errors in the signal's scale, and whether they grow as it says."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from measure import keys, moment, normal
from models import Block, Net, TiedLM

import anyinit
from anyinit import Plan, Stability, StabilityVerdict

D = 256

Function = Callable[[jax.Array], jax.Array]


def signed_square(x: jax.Array) -> jax.Array:
    return x * jnp.abs(x)


def relu_squared(x: jax.Array) -> jax.Array:
    return jnp.square(nn.relu(x))


def relu_cubed(x: jax.Array) -> jax.Array:
    return nn.relu(x) ** 3


POWERS = {"signed_square": signed_square, "relu_squared": relu_squared, "relu_cubed": relu_cubed}


def stack(function: Function, layers: int = 6, norm: str = "none") -> nn.Module:
    """Layers of one function, with a norm before each, after each, or none."""

    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        for _ in range(layers):
            x = nn.RMSNorm()(x) if norm == "before" else x
            x = function(nn.Dense(D, use_bias=False)(x))
            x = nn.LayerNorm()(x) if norm == "after" else x
        return nn.Dense(D, use_bias=False)(x)

    return Net(body)


def stability(model: nn.Module, *args: Any) -> Stability:
    found = anyinit.flax.plan(model, *(args or (normal(0, (8, D)),))).stability
    assert found is not None
    return found


def kinds(model: nn.Module) -> list[str]:
    plan = anyinit.flax.plan(model, normal(0, (8, D)))
    return [finding.kind.name for finding in plan.findings]


@pytest.mark.parametrize(
    ("name", "slope"), [("signed_square", 2), ("relu_squared", 2), ("relu_cubed", 3)]
)
def test_powers_without_a_norm_are_unstable(name: str, slope: int) -> None:
    found = stability(stack(POWERS[name]))
    assert found.verdict is StabilityVerdict.UNSTABLE
    assert found.depth == 6
    assert found.growth == pytest.approx(slope**6, rel=0.02)
    assert found.tenfold_depth == pytest.approx(math.log(10) / math.log(slope), rel=0.02)
    assert [each.slope for each in found.nonlinearities] == pytest.approx([slope], rel=1e-3)
    assert found.nonlinearities[0].count == 6
    assert kinds(stack(POWERS[name])) == ["UNSTABLE"]


@pytest.mark.parametrize("norm", ["before", "after"])
@pytest.mark.parametrize("name", POWERS)
def test_powers_under_a_norm_are_not(name: str, norm: str) -> None:
    model = stack(POWERS[name], norm=norm)
    assert stability(model).verdict in (StabilityVerdict.CONTRACTIVE, StabilityVerdict.MARGINAL)
    assert stability(model).tenfold_depth is None
    assert kinds(model) == []


@pytest.mark.parametrize(
    ("function", "verdict", "slope"),
    [
        (nn.relu, StabilityVerdict.MARGINAL, 1.0),
        (nn.leaky_relu, StabilityVerdict.MARGINAL, 1.0),
        (jnp.tanh, StabilityVerdict.CONTRACTIVE, 0.461),
        (nn.selu, StabilityVerdict.CONTRACTIVE, 0.783),
        (nn.gelu, StabilityVerdict.EXPANSIVE, 1.144),
        (nn.silu, StabilityVerdict.EXPANSIVE, 1.173),
    ],
    ids=lambda entry: getattr(entry, "__name__", ""),
)
def test_functions(function: Function, verdict: StabilityVerdict, slope: float) -> None:
    found = stability(stack(function))
    assert found.verdict is verdict
    assert found.growth == pytest.approx(slope**6, rel=0.05)
    assert found.nonlinearities[0].slope == pytest.approx(slope, abs=2e-3)
    assert kinds(stack(function)) == []


def test_slope_of_tanh_is_the_integral() -> None:
    """χ = E[z f f′] / E[f²] for a normal z, by quadrature."""
    z, weights = np.polynomial.hermite_e.hermegauss(60)
    f = np.tanh(z)
    expected = np.dot(weights, z * f * (1 - f**2)) / np.dot(weights, f**2)
    assert stability(stack(jnp.tanh)).nonlinearities[0].slope == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("function", [nn.gelu, jnp.tanh, relu_squared], ids=["gelu", "tanh", "sq"])
def test_growth_is_what_a_larger_input_shows(function: Function) -> None:
    model = stack(function, layers=4)
    found = stability(model)
    x = normal(0, (64, D))
    variables = anyinit.flax.init(model, keys(0)["params"], x)
    before, after = (moment(model.apply(variables, s * x)) for s in (0.99, 1.01))
    measured = math.log(after / before) / (2 * math.log(1.01 / 0.99))
    assert found.growth == pytest.approx(measured, rel=0.15)


def test_a_residual_stream_dilutes_what_its_branches_amplify() -> None:
    """Each branch has a share of the stream: the error grows by (1 + 1/L)^L at most, not by 2^L."""

    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        x = nn.Dense(D)(x)
        for _ in range(6):
            x = x + nn.Dense(D)(relu_squared(nn.Dense(D)(x)))
        return nn.Dense(D)(x)

    found = stability(Net(body))
    assert 1.2 < found.growth < 4.0
    assert found.verdict is not StabilityVerdict.UNSTABLE


def test_gates_without_a_norm_are_unstable() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        for _ in range(5):
            x = nn.Dense(D)(x) * nn.sigmoid(nn.Dense(D)(x))
        return nn.Dense(D)(x * x)

    model = Net(body)
    assert stability(model).verdict in (StabilityVerdict.EXPANSIVE, StabilityVerdict.UNSTABLE)


def test_products_are_named_where_no_function_is_to_blame() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        for _ in range(5):
            x = nn.Dense(D)(x) * nn.Dense(D)(x)
        return nn.Dense(D)(x)

    plan = anyinit.flax.plan(Net(body), normal(0, (8, D)))
    (finding,) = plan.findings
    assert "the products of signals" in finding.message
    assert plan.stability is not None and plan.stability.growth == pytest.approx(32, rel=0.02)


@pytest.mark.parametrize("block", [None, Block])
def test_language_models_are_marginal(block: type[nn.Module] | None) -> None:
    model = TiedLM(128, blocks=0 if block is None else 2)
    plan = anyinit.flax.plan(model, jax.ShapeDtypeStruct((2, 16), jnp.int32))
    assert not [f for f in plan.findings if f.kind.name == "UNSTABLE"]
    if block is None:
        assert plan.stability is None
    else:
        assert plan.stability is not None and plan.stability.verdict is StabilityVerdict.MARGINAL


def test_unbounded_growth_is_cut_off() -> None:
    """3^30 is no number that anyone needs; the analysis must not overflow over it."""
    found = stability(stack(relu_cubed, layers=30))
    assert found.growth == pytest.approx(1e4, rel=1e-6)
    assert found.verdict is StabilityVerdict.UNSTABLE


def test_report_says_it_in_words() -> None:
    report = " ".join(str(anyinit.flax.plan(stack(signed_square), normal(0, (8, D)))).split())
    assert "changes by a factor of 64 over 6 nonlinear layers: unstable." in report
    assert "It grows tenfold over 3.3 such layers." in report
    assert "Slope of log E[f(z)²] against log E[z²]: abs mul 2." in report
    assert (
        "Errors in the signal's scale grow through the nonlinearity abs mul: by a factor of 64 "
        "over 6 layers without a normalization." in report
    )
    normed = str(anyinit.flax.plan(stack(nn.relu, norm="after"), normal(0, (8, D))))
    assert "taken off by a norm" in " ".join(normed.split())


def test_json_keeps_it() -> None:
    plan = anyinit.flax.plan(stack(nn.gelu), normal(0, (8, D)))
    assert Plan.from_json(plan.to_json()) == plan
    entry = plan.to_dict()["stability"]
    assert entry["verdict"] == "expansive"
    assert entry["nonlinearities"][0]["verdict"] == "expansive"
    older = {key: value for key, value in plan.to_dict().items() if key != "stability"}
    assert Plan.from_json(json.dumps(older)).stability is None


@pytest.mark.parametrize(
    ("growth", "depth", "verdict"),
    [
        (0.0, 0, StabilityVerdict.CONTRACTIVE),
        (0.5, 6, StabilityVerdict.CONTRACTIVE),
        (1.0, 6, StabilityVerdict.MARGINAL),
        (3.0, 1, StabilityVerdict.MARGINAL),
        (1.1, 2, StabilityVerdict.MARGINAL),
        (2.2, 6, StabilityVerdict.EXPANSIVE),
        (4.0, 2, StabilityVerdict.EXPANSIVE),
        (8.0, 3, StabilityVerdict.UNSTABLE),
        (8.0, 12, StabilityVerdict.EXPANSIVE),
    ],
)
def test_verdicts(growth: float, depth: int, verdict: StabilityVerdict) -> None:
    assert Stability(growth, depth).verdict is verdict
