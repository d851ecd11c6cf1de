"""mode="empirical": every weight is corrected by what it delivers on a real batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from breadth_models import BATTERY
from layers import IMAGES, VECTORS
from measure import flat, keys, moment, normal, rms, rows, run, tokens
from models import FusedBlock, Net, TiedLM

import anyinit
import anyinit.flax
from anyinit._findings import Kind

WIDTH = 128
KEY = jax.random.key(0)


def measured(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return anyinit.flax.init(model, KEY, *args, mode="empirical", **kwargs)


def logits(model: nn.Module, variables: Any, *args: Any) -> float:
    return moment(model.apply(dict(variables), *args))


# Factors that no constant of the model tells: they are computed from the signal.
FACTORS: dict[str, dict[str, Any]] = {
    "one_over_std_before": {"before": lambda h, d: h / jnp.std(3 * h)},
    "mean_of_absolutes_before": {"before": lambda h, d: h * jnp.mean(jnp.abs(h)) * 5},
    "norm_of_each_position": {"before": lambda h, d: h * jnp.linalg.norm(h, axis=-1)[..., None]},
}


@pytest.mark.parametrize("read", ["attend", "untied"])
@pytest.mark.parametrize("name", list(FACTORS))
def test_factors_computed_from_the_signal(name: str, read: str) -> None:
    model = TiedLM(d=WIDTH, blocks=1, read=read, **FACTORS[name])
    variables = measured(model, tokens(0, 2000))
    assert logits(model, variables, tokens(0, 2000)) == pytest.approx(1, abs=0.02)
    assert logits(model, variables, tokens(1, 2000)) == pytest.approx(1, abs=0.15)


def scaled_logits(
    tied: bool, factor: Callable[[Any, Any], Any]
) -> Callable[[nn.Module, Any, Any], Any]:
    """Logits times a number computed from what reaches the head and from an input."""

    def body(net: nn.Module, idx: jax.Array, lengths: jax.Array) -> jax.Array:
        embed = nn.Embed(500, WIDTH)
        h = nn.gelu(nn.Dense(2 * WIDTH)(embed(idx)))
        h = nn.Dense(WIDTH)(h)
        z = embed.attend(h) if tied else nn.Dense(500, use_bias=False)(h)
        return z * factor(h, lengths)

    return body


OF_LOGITS: dict[str, Callable[[Any, Any], Any]] = {
    "one_over_std": lambda h, lengths: 3 / jnp.std(h),
    "mean_of_absolutes": lambda h, lengths: 10 * jnp.mean(jnp.abs(h)),
    "from_lengths": lambda h, lengths: jnp.log(lengths.astype(jnp.float32))[:, None, None],
}


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("name", list(OF_LOGITS))
def test_factors_on_the_logits(name: str, tied: bool) -> None:
    model = Net(scaled_logits(tied, OF_LOGITS[name]))

    def batch(seed: int) -> tuple[Any, Any]:
        return tokens(seed, 500, (16, 24)), jnp.arange(16, 32)

    variables = measured(model, *batch(0))
    assert logits(model, variables, *batch(0)) == pytest.approx(1, abs=0.02)
    assert logits(model, variables, *batch(1)) == pytest.approx(1, abs=0.15)


def temperature(tied: bool) -> Callable[[nn.Module, Any, Any], Any]:
    """One attention whose temperature is computed from the length of each sequence."""

    def body(net: nn.Module, idx: jax.Array, lengths: jax.Array) -> jax.Array:
        embed = nn.Embed(500, WIDTH)
        x = nn.LayerNorm()(embed(idx))
        q, k, v = (nn.Dense(WIDTH, name=name)(x) for name in "qkv")
        scores = jnp.einsum("btd,bsd->bts", q, k) * jnp.log(lengths)[:, None, None]
        net.sow("intermediates", "scores", scores)
        x = x + nn.Dense(WIDTH, name="out")(nn.softmax(scores) @ v)
        x = nn.LayerNorm()(x)
        return embed.attend(x) if tied else nn.Dense(500)(x)

    return body


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_temperature_computed_from_the_lengths(tied: bool) -> None:
    model = Net(temperature(tied))
    batch = tokens(0, 500, (16, 24)), jnp.linspace(16.0, 40.0, 16)
    variables = measured(model, *batch)
    output, captured = run(model, variables, *batch)
    assert moment(output) == pytest.approx(1, abs=0.02)
    # What the scores exceed 1 by is taken off both sides: they are saturated by no temperature.
    assert moment(captured["scores"]) == pytest.approx(1, abs=0.05)
    assert moment(captured["q"]) == pytest.approx(moment(captured["k"]), rel=0.02)
    fresh = tokens(1, 500, (16, 24)), batch[1]
    assert logits(model, variables, *fresh) == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize(
    "name", ["dense", "sequential", "swiglu", "concatenated", "factor_on_the_input"]
)
def test_layers_meet_their_targets_exactly(name: str) -> None:
    model, x = Net(VECTORS[name]), normal(3, (64, 256))
    variables = measured(model, x)
    assert moment(model.apply(dict(variables), x)) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("name", ["conv_grouped", "group_norm"])
def test_convolutions(name: str) -> None:
    model, x = Net(IMAGES[name]), normal(3, (8, 12, 12, 16))
    output, captured = run(model, measured(model, x), x)
    assert moment(output) == pytest.approx(1, abs=0.02)
    assert captured


def deep(net: nn.Module, x: jax.Array) -> jax.Array:
    """A narrow network without norms, whose one draw scatters from layer to layer."""
    for layer in range(12):
        x = nn.relu(nn.Dense(32, name=f"layer{layer}")(x))
    return nn.Dense(8, name="head")(x)


def test_one_walk_settles_any_depth() -> None:
    x = normal(1, (256, 32))
    variables = measured(Net(deep), x)
    output, captured = run(Net(deep), variables, x)
    assert moment(output) == pytest.approx(1, abs=0.02)
    for layer in range(12):
        assert moment(captured[f"layer{layer}"]) == pytest.approx(1, abs=0.02)
    # The analytic plan cannot know what one draw does.
    plain = anyinit.flax.init(Net(deep), KEY, x)
    _, captured = run(Net(deep), plain, x)
    assert max(abs(math.log(moment(value))) for value in captured.values()) > 0.2


def test_an_attention_average_is_measured_not_bounded() -> None:
    model = TiedLM(d=WIDTH, blocks=2, block=FusedBlock)
    variables = measured(model, tokens(0, 2000))
    _, captured = run(model, variables, tokens(0, 2000))
    for block in range(2):
        for name in ("proj", "down"):
            assert moment(captured[f"FusedBlock_{block}/{name}"]) == pytest.approx(1 / 4, rel=0.02)
    assert not any(row.at_most for row in variables.plan.weights)


def test_terms_of_a_sum_are_measured_apart() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        a = nn.Dense(WIDTH, name="a")(x)
        b = nn.Dense(WIDTH, name="b")(jnp.square(x))
        net.sow("intermediates", "sum", a + b)
        return nn.Dense(32, name="head")(jnp.tanh(a + b))

    x = 1 + normal(0, (128, WIDTH))
    _, captured = run(Net(body), measured(Net(body), x), x)
    assert moment(captured["a"]) == pytest.approx(0.5, rel=0.02)
    assert moment(captured["b"]) == pytest.approx(0.5, rel=0.02)


def test_two_towers_share_what_their_product_asks_for() -> None:
    def body(net: nn.Module, x: jax.Array, y: jax.Array) -> jax.Array:
        left = nn.Dense(64, use_bias=False, name="left")(x)
        right = nn.Dense(64, use_bias=False, name="right")(y)
        return left @ right.T / 64

    args = normal(0, (32, WIDTH)), normal(1, (48, WIDTH))
    variables = measured(Net(body), *args)
    output, captured = run(Net(body), variables, *args)
    assert moment(output) == pytest.approx(1, abs=0.02)
    assert moment(captured["left"]) == pytest.approx(moment(captured["right"]), rel=0.02)


def test_two_towers_of_one_weight() -> None:
    def body(net: nn.Module, x: jax.Array, y: jax.Array) -> jax.Array:
        tower = nn.Dense(64, name="tower")
        return tower(jnp.tanh(x)) @ tower(jnp.tanh(y)).T / 4

    args = normal(0, (32, WIDTH)), normal(1, (48, WIDTH))
    variables = measured(Net(body), *args)
    assert moment(Net(body).apply(dict(variables), *args)) == pytest.approx(1, abs=0.02)


def test_gate_on_the_way_to_a_stream() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        gate = 4 * nn.relu(nn.Dense(WIDTH, name="gate")(x))
        branch = nn.Dense(WIDTH, name="branch")(jnp.tanh(nn.Dense(WIDTH, name="up")(x)))
        net.sow("intermediates", "gated", gate * branch)
        return nn.Dense(16, name="head")(nn.LayerNorm()(x + gate * branch))

    x = normal(0, (128, WIDTH))
    _, captured = run(Net(body), measured(Net(body), x), x)
    assert moment(captured["gated"]) == pytest.approx(1, abs=0.02)


def test_dropout_and_batch_norm_while_training() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        h = nn.Dense(WIDTH, name="first")(x)
        h = nn.BatchNorm(use_running_average=False)(h)
        h = nn.Dropout(0.5, deterministic=False)(nn.relu(h))
        return nn.Dense(32, name="head")(h)

    x = 3 * normal(0, (64, WIDTH))
    variables, again = (measured(Net(body), x, input_moment=9.0) for _ in range(2))
    drawn = Net(body).init(KEY, x)
    assert flat(variables["batch_stats"]).keys() == flat(drawn["batch_stats"]).keys()
    for name, value in flat(variables["batch_stats"]).items():
        assert np.array_equal(value, flat(drawn["batch_stats"])[name])
    for name, value in flat(variables["params"]).items():
        assert np.array_equal(value, flat(again["params"])[name]), "not deterministic"
    row = rows(variables.plan)["head/kernel"]
    # ReLU halves, dropout doubles.
    assert row.moment_in == pytest.approx(1, rel=0.05)


def test_values_that_are_not_scaled_stay() -> None:
    model = TiedLM(d=WIDTH, blocks=1, bias=True, positions="embed")
    drawn = flat(model.init(KEY, tokens(0, 2000))["params"])
    variables = measured(model, tokens(0, 2000), skip="positions*")
    for name, value in flat(variables["params"]).items():
        if name in rows(variables.plan):
            ratio = np.asarray(value) / np.asarray(drawn[name])
            assert np.allclose(ratio, ratio.flat[0], rtol=1e-4), name
        else:
            assert np.array_equal(value, drawn[name]), name
    assert "positions/embedding" not in rows(variables.plan)


def test_plan_says_what_was_measured_and_applies_again() -> None:
    model, idx = TiedLM(d=WIDTH, blocks=1), tokens(0, 2000)
    variables = measured(model, idx)
    plan = variables.plan
    assert "measured on a batch" in str(plan).splitlines()[0]
    assert plan.logits_moment == pytest.approx(1, abs=0.02)
    assert anyinit.Plan.from_json(plan.to_json()) == plan
    for row in plan.weights:
        assert rms(flat(variables["params"])[row.path]) == pytest.approx(row.sigma, rel=1e-3)
    again = plan.rescale(variables)
    for name, value in flat(again["params"]).items():
        assert np.allclose(value, flat(variables["params"])[name], rtol=1e-5), name
    # A plan is of any use only if it is one for the optimizer, too.
    assert anyinit.optax_labels(variables) is not None


def test_layers_that_are_scanned() -> None:
    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array, _: None) -> tuple[jax.Array, None]:
            h = nn.Dense(2 * WIDTH, name="up")(x)
            return x + nn.Dense(WIDTH, name="down")(nn.relu(h)), None

    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        stack = nn.scan(Layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=5)
        x, _ = stack(name="layers")(x, None)
        return nn.Dense(32, name="head")(nn.LayerNorm()(x))

    x = normal(0, (128, WIDTH))
    variables = measured(Net(body), x)
    plan = variables.plan
    assert len(rows(plan)["layers/down/kernel"].sigma) == 5
    assert moment(Net(body).apply(dict(variables), x)) == pytest.approx(1, abs=0.02)
    down = np.asarray(flat(variables["params"])["layers/down/kernel"])
    for layer, sigma in enumerate(rows(plan)["layers/down/kernel"].sigma):
        assert rms(down[layer]) == pytest.approx(sigma, rel=1e-3)


def test_a_weight_used_in_every_layer() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        up, down = nn.Dense(2 * WIDTH, name="up"), nn.Dense(WIDTH, name="down")
        for _ in range(4):
            x = x + down(nn.relu(up(nn.LayerNorm(use_scale=False, use_bias=False)(x))))
        return nn.Dense(32, name="head")(nn.LayerNorm()(x))

    x = normal(0, (128, WIDTH))
    output, captured = run(Net(body), measured(Net(body), x), x)
    assert moment(output) == pytest.approx(1, abs=0.02)
    asked = [moment(captured[f"up{suffix}"]) for suffix in ("", "#1", "#2", "#3")]
    assert np.exp(np.mean(np.log(asked))) == pytest.approx(1, abs=0.02)


def test_positions_that_two_signals_share() -> None:
    def body(net: nn.Module, left: jax.Array, right: jax.Array) -> jax.Array:
        positions = net.param("positions", nn.initializers.normal(0.02), (24, WIDTH))
        table = nn.Embed(500, WIDTH, name="table")
        sums = []
        for idx in (left, right):
            x = table(idx) + positions
            net.sow("intermediates", "sum", x)
            sums.append(nn.LayerNorm()(x))
        return nn.Dense(32, name="head")(jnp.concatenate(sums, axis=-1))

    args = tokens(0, 500, (8, 24)), tokens(1, 500, (8, 24))
    variables = measured(Net(body), *args)
    output, captured = run(Net(body), variables, *args)
    assert moment(output) == pytest.approx(1, abs=0.02)
    planned = rows(variables.plan)
    assert planned["positions"].sigma == pytest.approx(0.5**0.5, rel=0.03)
    assert planned["table/embedding"].sigma == pytest.approx(0.5**0.5, rel=0.03)
    assert moment(captured["sum"]) == pytest.approx(1, abs=0.03)


def test_recurrent_network() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        h = nn.RNN(nn.OptimizedLSTMCell(WIDTH), name="rnn")(x)
        return nn.Dense(32, name="head")(h)

    x = normal(0, (16, 12, WIDTH))
    variables = measured(Net(body), x)
    assert moment(Net(body).apply(dict(variables), x)) == pytest.approx(1, abs=0.1)
    assert Kind.UNSETTLED not in {finding.kind for finding in variables.plan.findings}


def test_readout_in_every_step_of_a_loop() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        first, head = nn.Dense(WIDTH, name="first"), nn.Dense(32, name="head")
        first(x[0]), head(first(x[0]))  # Made outside of the loop.
        return jax.lax.map(lambda part: head(jnp.tanh(first(part))), x)

    # No step is like another: the last one says little of all.
    x = normal(0, (6, 32, WIDTH)) * jnp.arange(1.0, 7.0)[:, None, None]
    variables = measured(Net(body), x)
    assert moment(Net(body).apply(dict(variables), x)) == pytest.approx(1, abs=0.02)
    assert variables.plan.logits_moment == pytest.approx(1, abs=0.02)


def test_one_hot_and_masked_logits() -> None:
    def body(net: nn.Module, idx: jax.Array) -> jax.Array:
        h = nn.Dense(WIDTH, name="first")(nn.Embed(500, WIDTH)(idx))
        z = nn.Dense(512, name="head")(nn.relu(h))
        # The vocabulary is padded to a multiple of 64.
        return jnp.where(jnp.arange(512) < 500, z, -1e9)

    idx = tokens(0, 500)
    variables = measured(Net(body), idx)
    output = Net(body).apply(dict(variables), idx)
    assert moment(output[..., :500]) == pytest.approx(1, abs=0.03)
    assert variables.plan.logits_moment == pytest.approx(1, abs=0.05)


# What no scale of a weight sets: unit vectors times a number; a kernel that is asked for two
# scales at once; a mean and a deviation of which a sample is drawn.
NOT_SET = ("contrastive", "tied_autoencoder", "variational")


@pytest.mark.slow
@pytest.mark.standard_promotion
@pytest.mark.parametrize("name", [name for name in BATTERY if name not in NOT_SET])
def test_battery(name: str) -> None:
    case = BATTERY[name]
    options = dict(case.options)
    streams = {key: value for key, value in keys(0).items() if key != "params"}

    def outputs(variables: Any, seed: int) -> list[float]:
        mutable = [other for other in variables if other != "params"]
        output = case.model.apply(
            dict(variables),
            *case.inputs(seed),
            rngs=streams,
            mutable=mutable or ["none"],
            **options,
        )[0]
        floats = [x for x in jax.tree.leaves(output) if jnp.issubdtype(x.dtype, jnp.inexact)]
        return [moment(leaf) for leaf in floats]

    variables = anyinit.flax.init(case.model, keys(0), *case.inputs(0), mode="empirical", **options)
    assert Kind.UNSETTLED not in {finding.kind for finding in variables.plan.findings}
    if case.outputs is not None:
        assert outputs(variables, 0)[0] == pytest.approx(1, abs=0.02)
        assert 0.8 < outputs(variables, 1)[0] < 1.25


MODEL = Net(VECTORS["dense"])


def test_refused_batches() -> None:
    x = normal(0, (8, 256))
    with pytest.raises(ValueError, match="holds NaN"):
        measured(MODEL, x.at[0, 0].set(jnp.nan))
    with pytest.raises(ValueError, match="All entries of the batch are equal"):
        anyinit.flax.init(MODEL, jax.random.PRNGKey(1), jnp.zeros((8, 256)), mode="empirical")
    with pytest.raises(ValueError, match="All entries of the batch are equal"):
        measured(TiedLM(d=WIDTH), jnp.zeros((8, 32), jnp.int32))
    with pytest.raises(TypeError, match=r"got the shape \(8, 256\) without values"):
        measured(MODEL, jax.ShapeDtypeStruct((8, 256), jnp.float32))
    with pytest.raises(TypeError, match="being traced"):
        jax.jit(lambda key, x: anyinit.flax.init(MODEL, key, x, mode="empirical"))(KEY, x)
    with pytest.raises(TypeError, match="being traced"):
        jax.jit(lambda key: anyinit.flax.init(MODEL, key, x, mode="empirical"))(KEY)


def test_a_signal_that_is_not_finite() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        h = nn.Dense(WIDTH, name="first")(x)
        # Fine for unit normal inputs, and for no other.
        return nn.Dense(32, name="head")(jnp.where(jnp.max(x) > 50, jnp.nan, 1.0) * jnp.tanh(h))

    with pytest.raises(FloatingPointError, match=r"head/kernel.*NaN or infinite.*nothing was"):
        measured(Net(body), normal(0, (32, WIDTH)).at[0, 0].set(100))


def test_a_part_that_the_batch_leaves_silent() -> None:
    def body(net: nn.Module, x: jax.Array, y: jax.Array) -> jax.Array:
        a = nn.Dense(WIDTH, name="a", use_bias=False)(x)
        b = nn.Dense(WIDTH, name="b", use_bias=False)(y)
        return nn.Dense(32, name="head")(jnp.tanh(a + b))

    variables = measured(Net(body), normal(0, (32, 64)), jnp.zeros((32, 64)))
    silent = [f for f in variables.plan.findings if f.kind is Kind.NOTHING_MEASURED]
    assert [finding.subject for finding in silent] == ["b/kernel"]
    assert "delivers only zeros on this batch" in silent[0].message
    analytic = anyinit.flax.plan(Net(body), normal(0, (32, 64)), jnp.zeros((32, 64)))
    assert rows(variables.plan)["b/kernel"].sigma == rows(analytic)["b/kernel"].sigma


def test_a_batch_of_one() -> None:
    variables = measured(MODEL, normal(0, (1, 256)))
    assert Kind.ONE_EXAMPLE in {finding.kind for finding in variables.plan.findings}


def test_keys_as_a_dict_and_streams() -> None:
    model = TiedLM(d=WIDTH)
    one = anyinit.flax.init(model, keys(0), tokens(0, 2000), mode="empirical")
    assert logits(model, one, tokens(0, 2000)) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("mode", ["analytic", "empirical"])
def test_pixels_divided_by_255_are_as_any_input(mode: str) -> None:
    """The weight behind them is no larger than others, so it is not to move faster."""
    model = Net(lambda net, x: nn.Dense(64)(nn.relu(nn.Dense(128, name="first")(x / 255))))
    x = 255 * normal(0, (256, 64))
    given = {"mode": mode} if mode == "empirical" else {"input_moment": 255.0**2}
    plan = anyinit.flax.init(model, jax.random.key(0), x, **given).plan
    row = plan.weight_by_name["first/kernel"]
    assert row.sigma == pytest.approx(64**-0.5, rel=0.05)
    assert (row.c, row.m) == pytest.approx((1, 1), rel=0.02)
    by_hand = (row.target / (row.fan * row.moment_in)) ** 0.5 / row.c
    assert by_hand == pytest.approx(row.sigma, rel=0.02)


def test_a_factor_on_inputs_of_second_moment_1_counts() -> None:
    model = Net(lambda net, x: nn.Dense(64)(x / 8))
    row = anyinit.flax.plan(model, jnp.zeros((4, 64))).weights[0]
    assert (row.sigma, row.c, row.m, row.moment_in) == pytest.approx((1, 1 / 8, 8, 1))
