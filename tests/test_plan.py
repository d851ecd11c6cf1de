"""A plan as a value: JSON, equality, hash, copies."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import os
import pickle
import subprocess
import sys

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import constants, scaled_logits, weight

from anyinit._findings import Finding, Kind, Reason
from anyinit._plan.plan import LeftAlone, Plan

FULL = Plan(
    weights=(
        weight("a/kernel", (3, 4, 5), sigma=(0.1, 1 / 3, 2.0), std_before=(0.1, 0.2, 0.3)),
        weight("b", (2, 2), std_before=None, aliases=("c", "d"), at_most=True, m=math.pi),
        *scaled_logits().weights,
    ),
    left_alone=tuple(LeftAlone(f"left/{reason.name}", reason) for reason in Reason),
    findings=tuple(Finding(kind, "{x}<y>", "model.py:3", "détail") for kind in Kind),
    logits_moment=0.1 + 0.2,
    vocabulary=50_257,
)


@pytest.mark.parametrize("plan", [FULL, scaled_logits(), Plan(weights=())])
def test_json_round_trip_is_exact(plan: Plan) -> None:
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert dataclasses.astuple(again) == dataclasses.astuple(plan)
    assert hash(again) == hash(plan)
    assert again.to_json() == plan.to_json()
    assert Plan.from_json(plan.to_json().encode()) == plan


@settings(max_examples=50, deadline=None)
@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_floats_round_trip(c: float, sigma: float) -> None:
    plan = Plan(weights=(weight("w", (2, 2), c=c, sigma=sigma),))
    assert Plan.from_json(plan.to_json()) == plan


def test_numpy_numbers_round_trip() -> None:
    row = weight("w", (np.int64(2), np.int32(3)), c=np.float32(0.1), sigma=(np.float64(0.3),))
    plan = Plan(weights=(row,), vocabulary=np.int64(7), logits_moment=np.float32(1.5))
    assert Plan.from_json(plan.to_json()) == plan


def test_dict_has_the_documented_keys() -> None:
    data = FULL.to_dict()
    assert data == json.loads(FULL.to_json())
    assert data["version"] == 1
    assert {"path", "shape", "roles", "site", "fan", "moment_in", "c", "target"} <= set(
        data["weights"][0]
    )
    assert {"std_before", "sigma", "m"} <= set(data["weights"][0])
    assert data["left_alone"][0] == {
        "path": "left/CONSTANT",
        "kind": "CONSTANT",
        "reason": Reason.CONSTANT.value,
    }
    assert data["findings"][0]["kind"] == FULL.findings[0].kind.name
    assert data["findings"][0]["message"] == FULL.findings[0].message
    assert data["findings"][0]["where"] == "model.py:3"
    assert data["expected_loss"] == FULL.expected_loss


def changed(**fields: object) -> str:
    return json.dumps(scaled_logits().to_dict() | fields)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it is not JSON"),
        ("sigma: 1", "it is not JSON"),
        ("[]", 'not an object with a "version"'),
        ("{}", 'not an object with a "version"'),
        ('{"version": "1"}', 'not an object with a "version"'),
        ('{"version": 1}', "'weights' is missing"),
        (changed(weights=[{"path": "a"}]), "'shape' is missing"),
        (changed(weights=3), "wrong type"),
        (changed(weights=["a"]), "wrong type"),
        (changed(left_alone=[{"path": "a", "kind": "MOOD"}]), "'MOOD' is missing or unknown"),
        (changed(version=2), "format version 2, but this anyinit reads versions up to 1"),
    ],
)
def test_wrong_text_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as error:
        Plan.from_json(text)
    assert "plan.to_json()" in str(error.value) or "upgrade anyinit-jax" in str(error.value)


def test_other_types_are_refused() -> None:
    with pytest.raises(TypeError, match=r"got a dict\. Read a file first"):
        Plan.from_json(scaled_logits().to_dict())  # type: ignore[arg-type]


def test_plans_differ_by_any_field() -> None:
    plan = scaled_logits()
    others = [
        dataclasses.replace(plan, weights=plan.weights[1:]),
        dataclasses.replace(plan, left_alone=constants("x")),
        dataclasses.replace(plan, findings=()),
        dataclasses.replace(plan, logits_moment=2.0),
        dataclasses.replace(plan, vocabulary=None),
    ]
    assert len({plan, *others}) == 6
    assert plan != plan.weights
    assert plan == scaled_logits()


def test_copies_are_equal() -> None:
    plan = scaled_logits()
    hash(plan)
    for again in (copy.copy(plan), copy.deepcopy(plan), pickle.loads(pickle.dumps(plan))):
        assert again == plan
        assert hash(again) == hash(plan)
    assert copy.deepcopy(plan) is plan


def test_pickled_plan_carries_no_hash_of_another_process() -> None:
    plan = scaled_logits()
    hash(plan)
    code = (
        "import sys, pickle; plan = pickle.loads(sys.stdin.buffer.read());"
        "assert hash(plan) == hash(type(plan).from_json(plan.to_json()))"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        input=pickle.dumps(plan),
        env=os.environ | {"PYTHONHASHSEED": "7"},
        check=True,
    )


def test_plan_is_static_under_jit() -> None:
    traces = []

    def double(plan: Plan, x: jax.Array) -> jax.Array:
        traces.append(plan)
        return x + x

    jitted = jax.jit(double, static_argnums=0)
    for _ in range(3):
        jitted(scaled_logits(), np.float32(1))
    assert len(traces) == 1


def test_expected_loss() -> None:
    loss = Plan(weights=(), logits_moment=1.0, vocabulary=50_304).expected_loss
    assert loss == pytest.approx(math.log(50_304) + 0.5)
    assert Plan(weights=()).expected_loss is None
    assert Plan(weights=(), logits_moment=1.0).expected_loss is None


def test_expected_loss_is_that_of_normal_logits() -> None:
    rng = np.random.default_rng(0)
    logits = 1.3 * rng.normal(size=(200, 5000))
    measured = np.mean(np.log(np.sum(np.exp(logits), axis=1)) - logits[:, 0])
    plan = Plan(weights=(), logits_moment=1.3**2, vocabulary=5000)
    assert plan.expected_loss == pytest.approx(measured, rel=0.01)
