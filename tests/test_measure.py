"""measure: predicted against measured, per site, output and residual stream."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from measure import flat, moment, normal, run, tokens
from models import Net, TiedLM

import anyinit
import anyinit.flax
from anyinit import Check, MeasuredRow, Place, UnhealthyError, Verdict
from anyinit._findings import Kind

WIDTH = 128
KEY = jax.random.key(0)


def body(net: nn.Module, x: jax.Array) -> jax.Array:
    x = nn.Dense(WIDTH, name="stem")(x)
    for layer in range(2):
        h = nn.relu(nn.Dense(2 * WIDTH, name=f"up{layer}")(nn.LayerNorm()(x)))
        x = x + nn.Dense(WIDTH, name=f"down{layer}")(h)
    return nn.Dense(64, name="head")(nn.LayerNorm()(x))


MODEL = Net(body)
X = normal(0, (64, WIDTH))


@pytest.fixture(scope="module")
def params() -> Any:
    with jax.numpy_dtype_promotion("strict"):
        return anyinit.flax.init(MODEL, KEY, X)


@pytest.fixture(scope="module")
def check(params: Any) -> Check:
    with jax.numpy_dtype_promotion("strict"):
        return anyinit.flax.measure(MODEL, params, X)


def test_every_site_output_and_stream_has_a_row(check: Check) -> None:
    found = {(row.path.removesuffix("/kernel"), row.place) for row in check.rows}
    assert found == {
        ("stem", Place.SITE),
        *((f"{name}{layer}", Place.SITE) for name in ("up", "down") for layer in (0, 1)),
        *((f"down{layer}", Place.STREAM) for layer in (0, 1)),
        ("head", Place.OUTPUT),
    }
    depths = [row.depth for row in check.rows]
    assert depths == sorted(depths)
    assert all(row.where.startswith("test_measure.py:") for row in check.rows)


def test_what_is_measured_is_what_the_model_computes(check: Check, params: Any) -> None:
    output, captured = run(MODEL, params, X)
    by_path = {row.path: row for row in check.rows if row.place is not Place.STREAM}
    for name in ("stem", "up0", "down0", "up1", "down1"):
        row = by_path[f"{name}/kernel"]
        assert row.measured == pytest.approx(moment(captured[name]), rel=1e-3)
    assert by_path["head/kernel"].measured == pytest.approx(moment(output), rel=1e-3)


def test_a_healthy_model_passes(check: Check) -> None:
    check.assert_healthy()
    check.assert_healthy(tolerance=0.2)
    assert {row.verdict for row in check.rows} == {Verdict.HEALTHY}


def test_sampling_error_shrinks_with_the_batch_and_with_the_width(params: Any) -> None:
    small = anyinit.flax.measure(MODEL, params, X[:8])
    large = anyinit.flax.measure(MODEL, params, normal(0, (512, WIDTH)))
    pairs = list(zip(small.rows, large.rows, strict=True))
    for few, many in pairs:
        assert few.batch_error is not None
        assert many.batch_error is not None
        # √64 = 8 times smaller, within what an estimate from eight examples allows.
        assert 2 < few.batch_error / many.batch_error < 32
    head, up = (next(r for r in large.rows if r.path == f"{n}/kernel") for n in ("head", "up0"))
    # 64 features against 256.
    assert head.width_error > 1.3 * up.width_error


def test_the_error_of_one_draw_adds_up_until_a_norm() -> None:
    def narrow(net: nn.Module, x: jax.Array) -> jax.Array:
        for _ in range(5):
            x = nn.relu(nn.Dense(32)(x))
        return nn.Dense(16)(nn.LayerNorm()(x))

    x = normal(0, (64, 32))
    rows = anyinit.flax.measure(Net(narrow), anyinit.flax.init(Net(narrow), KEY, x), x).rows
    draws = [row.draw_error for row in rows]
    assert draws[0] == 0
    assert draws[:5] == sorted(draws[:5])
    assert draws[4] > 0.15
    assert draws[5] == 0


def test_predictions_hold_over_many_draws() -> None:
    inside = total = 0
    for seed in range(4):
        drawn = anyinit.flax.init(MODEL, jax.random.key(seed), X)
        for row in anyinit.flax.measure(MODEL, drawn, normal(seed, (128, WIDTH))).rows:
            assert row.predicted is not None
            total += 1
            inside += abs(row.measured / row.predicted - 1) <= 3 * row.error
    assert inside >= 0.9 * total


def test_weights_that_were_not_scaled_are_listed() -> None:
    def loud(net: nn.Module, x: jax.Array) -> jax.Array:
        return body(net, x)

    raw = Net(loud).init(KEY, X)
    raw["params"]["up1"]["kernel"] *= 3
    with pytest.raises(UnhealthyError) as caught:
        anyinit.flax.measure(Net(loud), raw, X).assert_healthy()
    message = str(caught.value)
    assert "of 8 measured places are not as predicted (tolerance 0.5)" in message
    assert Verdict.LARGER.value in message
    assert "up1/kernel (nonlinearity  test_measure.py:" in message
    assert "predicted 1" in message
    assert "up0/kernel" not in message


def test_factor_computed_from_data_is_caught_and_cured() -> None:
    def factor(net: nn.Module, x: jax.Array) -> jax.Array:
        return nn.Dense(64, name="head")(jnp.tanh(nn.Dense(WIDTH, name="first")(x))) * jnp.max(x)

    model = Net(factor)
    plain = anyinit.flax.init(model, KEY, X)
    with pytest.raises(UnhealthyError, match=r"output.*larger|larger[\s\S]*output"):
        # The largest of samples is far from the largest of a batch.
        anyinit.flax.measure(model, plain, 3 * X).assert_healthy()
    cured = anyinit.flax.init(model, KEY, X, mode="empirical")
    anyinit.flax.measure(model, cured, X).assert_healthy(tolerance=0.05)


def test_nothing_passes_that_was_not_measured(check: Check) -> None:
    row = next(row for row in check.rows if row.place is Place.OUTPUT)
    lost = {
        "NOT_MEASURED": dataclasses.replace(row, predicted=None),
        "NOT_FINITE": dataclasses.replace(row, measured=float("nan")),
        "SILENT": dataclasses.replace(row, measured=0.0),
        "LARGER": dataclasses.replace(row, measured=9.0),
        "SMALLER": dataclasses.replace(row, measured=0.1),
        "UNCERTAIN": dataclasses.replace(row, measured=1.7, batch_error=0.3),
    }
    for name, broken in lost.items():
        assert broken.verdict.name == name
        with pytest.raises(UnhealthyError) as caught:
            Check((*check.rows, broken)).assert_healthy()
        assert Verdict[name].value in str(caught.value)
    with pytest.raises(ValueError, match="Nothing was measured"):
        Check(()).assert_healthy()
    # What a bound predicts is wrong from above only.
    bound = dataclasses.replace(row, measured=0.1, at_most=True)
    assert bound.verdict is Verdict.HEALTHY
    assert dataclasses.replace(bound, measured=9.0).verdict is Verdict.LARGER


@pytest.mark.parametrize("tolerance", [0, -1.0, float("nan"), float("inf"), "0.5", None])
def test_tolerances_that_are_none(check: Check, tolerance: Any) -> None:
    with pytest.raises(ValueError, match=r"tolerance=.*expected a positive finite number"):
        check.assert_healthy(tolerance=tolerance)


def test_tolerance_sets_what_is_allowed(check: Check) -> None:
    row = dataclasses.replace(check.rows[0], predicted=1.0, measured=1.9, batch_error=0.0)
    row = dataclasses.replace(row, width_error=0.0, draw_error=0.0)
    assert row.verdict_at(0.5) is Verdict.LARGER
    assert row.verdict_at(1.0) is Verdict.HEALTHY
    assert dataclasses.replace(row, measured=1 / 1.9).verdict_at(1.0) is Verdict.HEALTHY


def test_table_and_dictionary(check: Check) -> None:
    lines = str(check).splitlines()
    assert lines[0] == "anyinit check: 8 places measured, 0 not as predicted"
    assert "predicted" in lines[2]
    assert len([line for line in lines if "healthy" in line]) == 8
    assert "<table>" in check._repr_html_()
    assert repr(check) == "Check(8 places, 0 not as predicted)"
    data = json.loads(json.dumps(check.to_dict()))
    assert data["rows"][0]["verdict"] == "HEALTHY"
    assert data["rows"][0]["message"] == Verdict.HEALTHY.value
    broken = dataclasses.replace(check.rows[0], measured=50.0)
    text = str(Check((broken, *check.rows[1:])))
    assert "1 not as predicted" in text
    assert "Not as predicted" in text


def test_tied_table_with_a_multiplier_counts_its_own_tokens() -> None:
    model = TiedLM(d=WIDTH, blocks=1, vocab=500, lookup=lambda x, d: x * d**0.5)
    variables = anyinit.flax.init(model, KEY, tokens(0, 500))
    check = anyinit.flax.measure(model, variables, tokens(1, 500))
    readout = next(row for row in check.rows if row.place is Place.OUTPUT)
    assert readout.predicted is not None
    assert readout.predicted > 1.1
    assert readout.measured == pytest.approx(readout.predicted, rel=0.1)
    check.assert_healthy()


def test_plan_of_a_measured_model_predicts_what_was_measured() -> None:
    model = TiedLM(d=WIDTH, blocks=2)
    variables = anyinit.flax.init(model, KEY, tokens(0, 2000), mode="empirical")
    check = anyinit.flax.measure(model, variables, tokens(0, 2000))
    assert not any(row.at_most for row in check.rows)
    check.assert_healthy(tolerance=0.03)
    anyinit.flax.measure(model, variables, tokens(1, 2000)).assert_healthy(tolerance=0.3)
    plan = anyinit.Plan.from_json(variables.plan.to_json())
    inner = variables["params"]
    anyinit.flax.measure(model, inner, tokens(0, 2000), plan=plan).assert_healthy(tolerance=0.03)


def test_input_that_is_not_what_the_plan_counts_on(params: Any) -> None:
    check = anyinit.flax.measure(MODEL, params, 5 * X)
    finding = next(f for f in check.findings if f.kind is Kind.INPUT_MOMENT)
    assert "pass input_moment=" in finding.message
    assert finding.message in " ".join(str(check).split())
    scaled = anyinit.flax.init(MODEL, KEY, X, input_moment=25.0)
    fine = anyinit.flax.measure(MODEL, scaled, 5 * X, input_moment=25.0)
    assert not [f for f in fine.findings if f.kind is Kind.INPUT_MOMENT]
    fine.assert_healthy()


def test_masked_logits_count_without_their_fill() -> None:
    def padded(net: nn.Module, idx: jax.Array) -> jax.Array:
        h = nn.relu(nn.Dense(WIDTH)(nn.Embed(500, WIDTH)(idx)))
        return jnp.where(jnp.arange(512) < 500, nn.Dense(512)(h), -1e9)

    model = Net(padded)
    variables = anyinit.flax.init(model, KEY, tokens(0, 500))
    anyinit.flax.measure(model, variables, tokens(1, 500)).assert_healthy()


def test_batch_of_one_is_said(params: Any) -> None:
    check = anyinit.flax.measure(MODEL, params, X[:1])
    assert Kind.ONE_EXAMPLE in {finding.kind for finding in check.findings}
    assert all(row.batch_error is None for row in check.rows)


def test_not_finite_is_a_row_of_its_own() -> None:
    def broken(net: nn.Module, x: jax.Array) -> jax.Array:
        h = nn.Dense(WIDTH, name="first")(x)
        return nn.Dense(32, name="head")(jnp.where(jnp.max(x) > 50, jnp.nan, 1.0) * jnp.tanh(h))

    model, x = Net(broken), normal(0, (32, WIDTH))
    variables = anyinit.flax.init(model, KEY, x)
    check = anyinit.flax.measure(model, variables, x.at[0, 0].set(100))
    with pytest.raises(UnhealthyError, match="NaN or infinite numbers arrive"):
        check.assert_healthy(tolerance=100)


def test_nothing_is_changed(params: Any) -> None:
    before = {name: jnp.array(value) for name, value in flat(params["params"]).items()}
    anyinit.flax.measure(MODEL, params, X)
    for name, value in flat(params["params"]).items():
        assert (value == before[name]).all()


def test_refused_arguments(params: Any) -> None:
    with pytest.raises(ValueError, match="do not belong to this plan"):
        other = anyinit.flax.plan(TiedLM(d=WIDTH), tokens(0, 2000))
        anyinit.flax.measure(MODEL, params["params"], X, plan=other)
    with pytest.raises(TypeError, match="without values"):
        anyinit.flax.measure(MODEL, params, jax.ShapeDtypeStruct((8, WIDTH), jnp.float32))
    with pytest.raises(TypeError, match="A parameter has no values"):
        shapes = jax.eval_shape(lambda p: p, params)
        anyinit.flax.measure(MODEL, shapes, X)
    with pytest.raises(ValueError, match="All entries of the batch are equal"):
        anyinit.flax.measure(MODEL, params, jnp.ones((8, WIDTH)))

    def normalized(net: nn.Module, x: jax.Array) -> jax.Array:
        return nn.Dense(8)(nn.BatchNorm(use_running_average=True)(nn.Dense(WIDTH)(x)))

    model = Net(normalized)
    whole = anyinit.flax.init(model, KEY, X)
    anyinit.flax.measure(model, whole, X).assert_healthy()
    with pytest.raises(ValueError, match=r"lack batch_stats.*pass the whole variables"):
        anyinit.flax.measure(model, whole["params"], X, plan=whole.plan)


def test_rows_are_plain_records(check: Check) -> None:
    assert all(isinstance(row, MeasuredRow) for row in check.rows)
    assert hash(check.rows[0]) == hash(dataclasses.replace(check.rows[0]))


def test_parameters_of_another_model_are_refused(params: Any) -> None:
    other = anyinit.flax.init(TiedLM(d=WIDTH), KEY, tokens(0, 2000))
    with pytest.raises(ValueError, match="these parameters are not those of this"):
        anyinit.flax.measure(MODEL, other, X)
    small, wide = Net(lambda net, x: nn.Dense(8)(x)), Net(lambda net, x: nn.Dense(16)(x))
    made = anyinit.flax.init(wide, KEY, X)
    with pytest.raises(ValueError, match=rf"Dense_0/kernel is \({WIDTH}, 16\), expected"):
        anyinit.flax.measure(small, made, X)


def test_steps_of_a_loop_are_one_row() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        return nn.Dense(64, name="head")(nn.RNN(nn.GRUCell(64))(nn.Dense(64, name="in")(x)))

    x = normal(0, (16, 12, 32))
    check = anyinit.flax.measure(Net(body), anyinit.flax.init(Net(body), KEY, x), x)
    paths = [row.path for row in check.rows if row.place is Place.SITE]
    assert paths.count("in/kernel") <= 2


@pytest.mark.parametrize("seed", range(4))
def test_one_output_feature_is_never_judged_by_one_draw(seed: int) -> None:
    model = Net(lambda net, x: nn.Dense(1)(jnp.abs(nn.Dense(WIDTH)(x))))
    params = anyinit.flax.init(model, jax.random.key(seed), X)
    check = anyinit.flax.measure(model, params, X)
    assert check.rows[-1].width_error == pytest.approx(2**0.5)
    assert check.rows[-1].verdict in (Verdict.HEALTHY, Verdict.UNCERTAIN)
    assert "nan" not in str(check)
    plan = anyinit.flax.plan(model, X)
    assert plan.expected_loss is None
    assert "cross-entropy" not in str(plan)
