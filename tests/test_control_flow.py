"""Loops and branches: written out as the model runs them; what cannot be followed is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flat_run import measured
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas
from jax.extend.core import Primitive
from measure import normal, rows
from models import Net

import anyinit
from anyinit._flax.linen import trace_linen

D, OUT = 128, 256

mystery = Primitive("mystery")
mystery.def_abstract_eval(lambda x: x)


def vectors(seed: int) -> tuple[jax.Array]:
    return (normal(seed, (32, D)),)


def kernel(net: nn.Module, name: str = "kernel", shape: tuple[int, ...] = (D, D)) -> jax.Array:
    return net.param(name, nn.initializers.normal(0.02), shape)


def head(x: jax.Array) -> jax.Array:
    return nn.Dense(OUT, name="head")(x)


def reversed_scan(net: nn.Module, x: jax.Array) -> jax.Array:
    """Over layers, the last one first; each layer's output is kept."""

    def layer(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = jnp.tanh(x @ weight)
        return x, x

    last, kept = jax.lax.scan(layer, x, kernel(net, shape=(3, D, D)), reverse=True)
    return head(last + kept[0] - kept[2])


def layers_and_steps(net: nn.Module, x: jax.Array) -> jax.Array:
    """Each layer runs a loop over time of its own."""

    def layer(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, None]:
        def step(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            h = jnp.tanh(x @ weight + 0.5 * h)
            return h, h

        return jax.lax.scan(step, jnp.zeros(x.shape[1:]), x)[1], None

    x = x.reshape(4, 8, D)
    return head(jax.lax.scan(layer, x, kernel(net, shape=(2, D, D)))[0])


def counted_while(net: nn.Module, x: jax.Array) -> jax.Array:
    weight = kernel(net)

    def step(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return carry[0] + 2, jnp.tanh(carry[1] @ weight)

    return head(jax.lax.while_loop(lambda carry: carry[0] < 5, step, (0, x))[1])


def branch_by_step(net: nn.Module, x: jax.Array) -> jax.Array:
    """Even steps take one branch, odd ones the other: known while the loop is written out."""
    even, odd = kernel(net, "even"), kernel(net, "odd")

    def step(i: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.cond(i % 2 == 0, lambda x: nn.relu(x @ even), lambda x: jnp.sin(x @ odd), x)

    return head(jax.lax.fori_loop(0, 4, step, x))


def backward_fori(net: nn.Module, x: jax.Array) -> jax.Array:
    stack = kernel(net, shape=(3, D, D))
    return head(jax.lax.fori_loop(0, 3, lambda i, x: nn.relu(x @ stack[2 - i]), x))


def switch_of_known_index(net: nn.Module, x: jax.Array) -> jax.Array:
    weight = kernel(net)
    branches = [lambda x: 100 * x, lambda x: nn.relu(x @ weight), lambda x: -x]
    return head(jax.lax.switch(1, branches, x))


def calls(net: nn.Module, x: jax.Array) -> jax.Array:
    """jit, checkpoint, checkpoint_name, vmap and a named scope around the same layer."""
    first, second = kernel(net, "first"), kernel(net, "second")
    h = jax.jit(lambda x: nn.relu(x @ first))(x)
    h = checkpoint_name(jax.checkpoint(lambda h: jnp.tanh(h @ second))(h), "hidden")
    with jax.named_scope("scope"):
        return jax.vmap(head)(h)


FOLLOWED: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        reversed_scan,
        layers_and_steps,
        counted_while,
        branch_by_step,
        backward_fori,
        switch_of_known_index,
        calls,
    )
}


@pytest.mark.parametrize("name", list(FOLLOWED))
def test_flat_graph_computes_what_the_model_does(name: str) -> None:
    found = measured(Net(FOLLOWED[name]), vectors)
    assert found.difference < 1e-4
    # A weight that a loop calls again is not scaled above 1/√fan_in, and the plan says so.
    assert {finding.kind.name for finding in found.plan.findings} <= {"RECURRENT"}
    assert found.outputs[0] == pytest.approx(1, abs=0.2)
    assert all(site.ratio < 1.5 for site in found.sites), found.sites


def test_counter_decides_how_often_a_while_runs() -> None:
    model = trace_linen(Net(counted_while), vectors(0), {}).analysis.model
    products = [n for n in model.graph.nodes if n.primitive == "dot_general"]
    assert len(products) == 3 + 1


def test_known_index_takes_one_branch() -> None:
    analysis = trace_linen(Net(switch_of_known_index), vectors(0), {}).analysis
    assert not any(node.primitive == "mix" for node in analysis.model.graph.nodes)
    assert "kernel" in rows(analysis.plan)


@pytest.mark.parametrize("body", [backward_fori, reversed_scan], ids=lambda f: f.__name__)
def test_one_number_for_each_layer(body: Callable[..., Any]) -> None:
    row = rows(anyinit.flax.plan(Net(body), *vectors(0)))["kernel"]
    assert len(row.sigma) == row.shape[0] == 3


@pytest.mark.parametrize("axis", [1, 2])
def test_layers_along_another_axis(axis: int) -> None:
    """A scan may keep its layers along any axis of the leaf."""

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array, _: None) -> tuple[jax.Array, None]:
            normed = nn.LayerNorm(use_scale=False, use_bias=False)(x)
            return x + nn.Dense(D, use_bias=False)(normed), None

    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        layers = nn.scan(
            Layer, variable_axes={"params": axis}, split_rngs={"params": True}, length=3
        )
        return head(nn.LayerNorm()(layers(name="layers")(x, None)[0]))

    (x,) = vectors(0)
    made = anyinit.flax.init(Net(body), jax.random.key(0), x)
    row = rows(made.plan)["layers/Dense_0/kernel"]
    assert row.layer_axes == (axis,)
    assert len(row.sigma) == 3
    kernels = np.moveaxis(made["params"]["layers"]["Dense_0"]["kernel"], axis, 0)
    np.testing.assert_allclose((kernels**2).mean(axis=(1, 2)) ** 0.5, row.sigma, rtol=1e-4)
    assert anyinit.Plan.from_json(made.plan.to_json()) == made.plan


def test_stacks_that_are_read_in_part_are_one_weight() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        stack = kernel(net, shape=(3, D, D))
        return head(nn.relu(nn.relu(x @ stack[0]) @ stack[2]))

    row = rows(anyinit.flax.plan(Net(body), *vectors(0)))["kernel"]
    assert isinstance(row.sigma, float)


def test_table_of_positions_read_row_by_row_is_no_stack() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        positions = kernel(net, "positions", (2, D))
        return head(jnp.concatenate([x + positions[0], x + positions[1]]))

    plan = anyinit.flax.plan(Net(body), *vectors(0))
    assert all(isinstance(row.sigma, float) for row in plan.weights)


def long_loop(growth: float) -> Callable[..., Any]:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        weight = kernel(net)

        def step(h: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
            return growth * h + jnp.tanh(x @ weight), None

        steps = jnp.broadcast_to(x, (100, *x.shape))
        return head(jax.lax.scan(step, jnp.zeros(x.shape), steps)[0])

    return body


def test_loop_that_grows_is_a_finding() -> None:
    plan = anyinit.flax.plan(Net(long_loop(1.2)), *vectors(0))
    found = [finding for finding in plan.findings if finding.kind.name == "LOOP_CAPPED"]
    assert len(found) == 1
    assert "test_control_flow.py" in found[0].where


def test_loop_that_settles_is_none() -> None:
    assert not anyinit.flax.plan(Net(long_loop(0.5)), *vectors(0)).findings


def test_while_by_data_settles_or_is_a_finding() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        weight = kernel(net)
        x = jax.lax.while_loop(lambda x: jnp.mean(x**2) > 0.1, lambda x: 1.5 * x + x @ weight, x)
        return head(x)

    plan = anyinit.flax.plan(Net(body), *vectors(0))
    assert [finding.kind.name for finding in plan.findings] == ["LOOP_CAPPED"]


def test_branch_by_data_is_a_mixture() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        x = jax.lax.cond(x.sum() > 0, lambda x: 3.0 * x, lambda x: x, x)
        return head(x)

    row = rows(anyinit.flax.plan(Net(body), *vectors(0)))["head/kernel"]
    assert row.moment_in == pytest.approx((9 + 1) / 2, rel=0.05)


def test_body_that_cannot_be_traced() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        weight = kernel(net)

        def step(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return (x @ weight if x.sum() > 0 else x), None

        return head(jax.lax.scan(step, x, None, length=3)[0])

    with pytest.raises(jax.errors.TracerBoolConversionError, match=r"test_control_flow\.py"):
        anyinit.flax.plan(Net(body), *vectors(0))


def reason(plan: anyinit.Plan, path: str) -> str:
    return next(left.reason.name for left in plan.left_alone if left.path == path)


def test_unknown_primitive_on_a_weight() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        return head(x @ mystery.bind(kernel(net)))

    plan = anyinit.flax.plan(Net(body), *vectors(0))
    assert "kernel" not in rows(plan)
    assert reason(plan, "kernel") in ("NONLINEAR", "UNPLANNED")
    found = [finding for finding in plan.findings if finding.kind.name == "NO_RULE"]
    assert "mystery" in found[0].message and "test_control_flow.py" in found[0].where


def test_unknown_primitive_on_a_signal_keeps_the_moment() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        return head(mystery.bind(nn.Dense(OUT, name="before")(x)))

    plan = anyinit.flax.plan(Net(body), *vectors(0))
    assert rows(plan)["head/kernel"].moment_in == pytest.approx(1, rel=0.01)
    assert [finding.kind.name for finding in plan.findings] == ["NO_RULE"]


def test_pallas_kernel_is_assumed_and_named() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        def double(read: Any, write: Any) -> None:
            write[...] = read[...] * 2

        h = nn.Dense(OUT, name="before")(x)
        shape = jax.ShapeDtypeStruct(h.shape, h.dtype)
        return head(pallas.pallas_call(double, out_shape=shape)(h))

    plan = anyinit.flax.plan(Net(body), *vectors(0))
    assert "pallas_call" in plan.findings[0].message
    assert "test_control_flow.py" in plan.findings[0].where


def test_callback_on_a_weight_leaves_it_alone() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        weight = kernel(net)
        shape = jax.ShapeDtypeStruct(weight.shape, weight.dtype)
        return head(x @ jax.pure_callback(lambda w: 2 * w, shape, weight))

    plan = anyinit.flax.plan(Net(body), *vectors(0))
    assert "kernel" not in rows(plan)


@pytest.mark.filterwarnings("ignore:Casting complex values")
def test_complex_weight_is_left_alone() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        def drawn(key: Any, shape: Any) -> jax.Array:
            return jax.random.normal(key, shape, jnp.complex64)

        return head((x @ net.param("kernel", drawn, (D, D)).astype(jnp.complex64)).real)

    with jax.numpy_dtype_promotion("standard"):
        plan = anyinit.flax.plan(Net(body), *vectors(0))
    assert reason(plan, "kernel") == "NOT_FLOAT"


def quantized(net: nn.Module, x: jax.Array) -> jax.Array:
    def drawn(key: Any, shape: Any) -> jax.Array:
        return jax.random.randint(key, shape, -127, 128, jnp.int8)

    scale = net.param("scale", nn.initializers.constant(0.01), (D,))
    weight = net.param("kernel", drawn, (D, D)).astype(jnp.float32) * scale
    return head(nn.relu(x @ weight))


def test_integer_weight_is_left_alone() -> None:
    assert reason(anyinit.flax.plan(Net(quantized), *vectors(0)), "kernel") == "NOT_FLOAT"


def test_integer_weight_is_followed_or_a_finding() -> None:
    plan = anyinit.flax.plan(Net(quantized), *vectors(0))
    true_moment = 0.5 * D * 127 * 128 / 3 * 1e-4
    right = np.isclose(rows(plan)["head/kernel"].moment_in, true_moment, rtol=0.1)
    assert right or plan.findings


def test_integer_output_is_a_finding_or_an_error() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        return jnp.argmax(head(x), axis=-1)

    try:
        plan = anyinit.flax.plan(Net(body), *vectors(0))
    except ValueError as error:
        assert "float" in str(error)
    else:
        assert plan.findings


def test_a_python_loop_over_time_limits_the_recurrent_weight() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        cell, steps = nn.LSTMCell(D), []
        carry = cell.initialize_carry(jax.random.key(0), x[:, 0].shape)
        for step in range(x.shape[1]):
            carry, h = cell(carry, x[:, step])
            steps.append(h)
        return head(jnp.stack(steps, axis=1))

    found = measured(Net(body), lambda seed: (normal(seed, (32, 16, D)),))
    limited = {f.subject for f in found.plan.findings if "feeds back" in f.message}
    assert limited == {f"LSTMCell_0/h{gate}/kernel" for gate in "ifgo"}
    row = rows(found.plan)["LSTMCell_0/hf/kernel"]
    assert row.sigma == pytest.approx(D**-0.5)
    assert row.target == 0.5
    assert found.outputs[0] == pytest.approx(1, abs=0.2)


def projected_before_the_loop(net: nn.Module, x: jax.Array) -> jax.Array:
    driven = nn.Dense(D, use_bias=False, name="driven")(x)
    recurrent = nn.Dense(D, use_bias=False, name="recurrent")
    h, steps = jnp.tanh(driven[:, 0]), []
    for step in range(1, x.shape[1]):
        h = jnp.tanh(driven[:, step] + recurrent(h))
        steps.append(h)
    return head(jnp.stack(steps, axis=1))


def split_before_the_loop(net: nn.Module, x: jax.Array) -> jax.Array:
    recurrent = nn.Dense(D, use_bias=False, name="recurrent")
    h = jnp.zeros_like(x[:, 0])
    for part in jnp.split(x, x.shape[1], axis=1):
        h = jnp.tanh(part.squeeze(1) + recurrent(h))
    return head(h)


@pytest.mark.parametrize("body", [projected_before_the_loop, split_before_the_loop])
def test_a_loop_over_the_parts_of_one_signal_limits_the_recurrent_weight(body: Any) -> None:
    found = measured(Net(body), lambda seed: (normal(seed, (32, 8, D)),))
    row = rows(found.plan)["recurrent/kernel"]
    assert any("feeds back" in finding.message for finding in found.plan.findings)
    assert row.sigma == pytest.approx(D**-0.5)
    assert found.outputs[0] == pytest.approx(1, abs=0.1)


def test_a_layer_that_sees_the_same_part_each_time_is_not_limited() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        layer, y = nn.Dense(D, use_bias=False, name="layer"), x
        for _ in range(4):
            y = nn.relu(layer(y) + x[:1])
        return head(y)

    plan = anyinit.flax.plan(Net(body), *vectors(0))
    assert not any("feeds back" in finding.message for finding in plan.findings)


@pytest.mark.parametrize("reverse", [False, True])
def test_what_a_loop_collects_is_the_mean_over_its_steps(reverse: bool) -> None:
    """Sums of 1 to 8 independent steps: (1 + … + 8)/8 of one step's second moment."""

    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        def step(carry: jax.Array, item: jax.Array) -> tuple[jax.Array, jax.Array]:
            return carry + item, carry + item

        _, sums = jax.lax.scan(step, jnp.zeros_like(x[0]), x, reverse=reverse)
        return head(sums)

    found = measured(Net(body), lambda seed: (normal(seed, (8, 64, D)),))
    assert rows(found.plan)["head/kernel"].moment_in == pytest.approx(4.5, rel=0.03)
    assert found.outputs[0] == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(
    ("read", "steps"),
    [
        (lambda sums: sums[-1], 8),
        (lambda sums: sums[0], 1),
        (lambda sums: jnp.flip(sums, 0)[0], 8),
        (lambda sums: sums.swapaxes(0, 1)[:, -1], 8),
        (lambda sums: jnp.flip(sums.transpose(1, 0, 2), 1)[:, 2], 6),
        (lambda sums: sums[2:3], 3),
    ],
)
def test_an_item_of_what_a_loop_collects_is_that_step(read: Any, steps: int) -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        def step(carry: jax.Array, item: jax.Array) -> tuple[jax.Array, jax.Array]:
            return carry + item, carry + item

        return head(read(jax.lax.scan(step, jnp.zeros_like(x[0]), x)[1]))

    plan = anyinit.flax.plan(Net(body), normal(0, (8, 64, D)))
    assert rows(plan)["head/kernel"].moment_in == pytest.approx(steps, rel=0.05)


@pytest.mark.parametrize("uses", [3, 6, 12])
def test_a_layer_applied_again_and_again_settles(uses: int) -> None:
    """What is asked for answers `uses`-fold to a change: plain iteration would diverge."""

    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        layer = nn.Dense(D, use_bias=False, name="layer")
        for _ in range(uses):
            x = nn.relu(layer(x))
        return head(x)

    plan = anyinit.flax.plan(Net(body), *vectors(0))
    assert not any("settle" in finding.message for finding in plan.findings)
    assert not any("feeds back" in finding.message for finding in plan.findings)
    expected = (2 * (uses - 1) / uses / D + 1 / uses / D) ** 0.5
    assert rows(plan)["layer/kernel"].sigma == pytest.approx(expected, rel=0.15)
