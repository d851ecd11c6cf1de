"""anyinit.nnx: in place, shared variables, stacked modules, labels, bridges to and from linen."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from measure import moment, normal, rms, rows, tokens

import anyinit
import anyinit.nnx

VOCAB, D, LAYERS, OUT = 1_000, 128, 4, 256


class Block(nnx.Module):
    """A pre-LN residual branch."""

    def __init__(self, d: int, rngs: nnx.Rngs) -> None:
        self.norm = nnx.LayerNorm(d, rngs=rngs)
        self.up = nnx.Linear(d, 4 * d, rngs=rngs)
        self.down = nnx.Linear(4 * d, d, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + self.down(nnx.gelu(self.up(self.norm(x))))


class Attention(nnx.Module):
    """A pre-LN transformer block."""

    def __init__(self, d: int, rngs: nnx.Rngs) -> None:
        self.norm = nnx.LayerNorm(d, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(4, d, decode=False, rngs=rngs)
        self.mlp = Block(d, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.mlp(x + self.attention(self.norm(x)))


class Scanned(nnx.Module):
    """A tied language model whose blocks are one stacked module, with 1/√d on the logits."""

    def __init__(self, rngs: nnx.Rngs, block: Any = Block) -> None:
        @nnx.split_rngs(splits=LAYERS)
        @nnx.vmap(in_axes=0, out_axes=0)
        def make(rngs: nnx.Rngs) -> nnx.Module:
            return block(D, rngs)

        self.table = nnx.Embed(VOCAB, D, rngs=rngs)
        self.blocks = make(rngs)
        self.norm = nnx.LayerNorm(D, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, idx: jax.Array) -> jax.Array:
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def forward(x: jax.Array, block: nnx.Module) -> jax.Array:
            return block(x)

        x = forward(self.dropout(self.table(idx)), self.blocks)
        return self.table.attend(self.norm(x)) / jnp.sqrt(float(D))


class Tied(nnx.Module):
    """One variable referenced by two modules, and one module referenced twice."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(D, D, rngs=rngs)
        self.again = self.first
        self.head = nnx.Linear(D, OUT, rngs=rngs)
        self.other = nnx.Linear(D, OUT, rngs=rngs)
        self.other.kernel = self.head.kernel

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = nnx.relu(self.again(nnx.relu(self.first(x))))
        return self.head(h), self.other(nnx.relu(x))


class Normalized(nnx.Module):
    """Convolution and batch norm: a collection besides the parameters."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(3, 64, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(64, rngs=rngs)
        self.head = nnx.Linear(64, OUT, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(nnx.relu(self.norm(self.conv(x))).mean(axis=(1, 2)))

    def features(self, x: jax.Array, negative: bool) -> jax.Array:
        return -self.conv(x) if negative else self.conv(x)


class Recurrent(nnx.Module):
    """`nnx.RNN` over a cell."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.rnn = nnx.RNN(nnx.GRUCell(D, D, rngs=rngs))
        self.head = nnx.Linear(D, OUT, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(self.rnn(x))


class Listed(nnx.Module):
    """Blocks in a list, one of them under `nnx.remat`."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.blocks = nnx.List([Block(D, rngs) for _ in range(3)])
        self.head = nnx.Linear(D, OUT, use_bias=False, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        for block in self.blocks:
            x = nnx.remat(lambda block, x: block(x))(block, x)
        return self.head(x)


class Ensemble(nnx.Module):
    """Members stacked by `nnx.vmap`, all on the same input."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        @nnx.split_rngs(splits=5)
        @nnx.vmap(in_axes=0, out_axes=0)
        def make(rngs: nnx.Rngs) -> nnx.Module:
            return nnx.Linear(D, OUT, rngs=rngs)

        self.members = make(rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return nnx.vmap(lambda member, x: member(x), in_axes=(0, None))(self.members, x)


def idx(seed: int) -> jax.Array:
    return tokens(seed, VOCAB)


def vectors(seed: int) -> jax.Array:
    return normal(seed, (128, D))


MODELS: dict[str, tuple[Callable[[nnx.Rngs], nnx.Module], Callable[[int], jax.Array]]] = {
    "scanned": (Scanned, idx),
    "scanned_attention": (lambda rngs: Scanned(rngs, Attention), idx),
    "tied": (Tied, vectors),
    "normalized": (Normalized, lambda seed: normal(seed, (8, 12, 12, 3))),
    "recurrent": (Recurrent, lambda seed: normal(seed, (8, 16, D))),
    "listed": (Listed, vectors),
    "ensemble": (Ensemble, vectors),
}


@pytest.mark.parametrize("name", list(MODELS))
def test_outputs_of_models(name: str) -> None:
    make, inputs = MODELS[name]
    found = []
    for seed in range(3):
        model = make(nnx.Rngs(seed))
        plan = anyinit.nnx.init(model, inputs(0))
        found.append([moment(leaf) for leaf in jax.tree.leaves(model(inputs(seed + 1)))])
        listed = [row.path for row in plan.weights] + [left.path for left in plan.left_alone]
        paths = ["/".join(map(str, path)) for path, _ in nnx.to_flat_state(nnx.state(model))]
        assert sorted(listed) == sorted(paths)
    for value in np.mean(found, axis=0):
        assert 0.8 <= value <= 1.25


@pytest.mark.parametrize("name", list(MODELS))
def test_plan_from_shapes_equals_that_of_values(name: str) -> None:
    make, inputs = MODELS[name]
    from_values = anyinit.nnx.plan(make(nnx.Rngs(0)), inputs(0))
    from_shapes = anyinit.nnx.plan(make, jax.ShapeDtypeStruct(inputs(0).shape, inputs(0).dtype))
    assert [row.path for row in from_values.weights] == [row.path for row in from_shapes.weights]
    for one, other in zip(from_values.weights, from_shapes.weights, strict=True):
        np.testing.assert_allclose(one.sigma, other.sigma, rtol=1e-3)


def test_in_place_and_idempotent() -> None:
    model = Scanned(nnx.Rngs(0))
    kernel = model.blocks.up.kernel
    bias = model.blocks.up.bias.get_value()
    plan = anyinit.nnx.init(model, idx(0))
    assert model.blocks.up.kernel is kernel
    assert model.blocks.up.bias.get_value() is bias
    sigma = rows(plan)["blocks/up/kernel"].sigma
    for layer in range(LAYERS):
        assert rms(kernel.get_value()[layer]) == pytest.approx(sigma[layer], rel=1e-4)
    before = kernel.get_value()
    again = anyinit.nnx.init(model, idx(0))
    np.testing.assert_allclose(kernel.get_value(), before, rtol=1e-5)
    assert [row.path for row in again.weights] == [row.path for row in plan.weights]


def test_shared_variable_is_one_row() -> None:
    model = Tied(nnx.Rngs(0))
    plan = anyinit.nnx.init(model, vectors(0))
    assert sorted(rows(plan)) == ["again/kernel", "head/kernel"] or sorted(rows(plan)) == [
        "first/kernel",
        "head/kernel",
    ]
    assert model.other.kernel is model.head.kernel
    names = {name for name in plan.known_names if name.startswith("other")}
    assert names == {"other/bias"}
    labels = anyinit.optax_labels(nnx.state(model, nnx.Param), plan=plan)
    assert set(jax.tree.leaves(labels)) == {"rest"}


def test_stacked_module_has_one_number_a_layer() -> None:
    row = rows(anyinit.nnx.plan(Scanned(nnx.Rngs(0)), idx(0)))["blocks/down/kernel"]
    assert len(row.sigma) == LAYERS
    assert row.target == pytest.approx(1 / LAYERS)


def test_labels_and_partition_of_a_state() -> None:
    model = Scanned(nnx.Rngs(0))
    plan = anyinit.nnx.init(model, idx(0))
    state = nnx.state(model, nnx.Param)
    labels = anyinit.optax_labels(state, plan=plan)
    assert labels["table"]["embedding"].get_value() == "table"
    assert labels["blocks"]["up"]["kernel"].get_value() == "rest"
    transform = anyinit.optax_partition(state, optax.sgd, plan=plan, learning_rate=1.0)
    optimizer = nnx.Optimizer(model, transform, wrt=nnx.Param)
    before = model.table.embedding.get_value(), model.norm.scale.get_value()
    gradients = jax.tree.map(jnp.ones_like, state)
    optimizer.update(model, gradients)
    table = before[0] - model.table.embedding.get_value()
    np.testing.assert_allclose(table, D**0.5, rtol=1e-3)
    np.testing.assert_allclose(before[1] - model.norm.scale.get_value(), 1, rtol=1e-5)


def test_labels_of_the_whole_state() -> None:
    model = Scanned(nnx.Rngs(0))
    plan = anyinit.nnx.init(model, idx(0))
    labels = anyinit.optax_labels(nnx.state(model), plan=plan)
    assert set(jax.tree.leaves(labels)) == {"rest", "table"}


def test_method_by_name_and_as_a_function() -> None:
    images = normal(0, (4, 12, 12, 3))
    model = Normalized(nnx.Rngs(0))
    by_name = anyinit.nnx.plan(model, images, negative=True, method="features")
    as_function = anyinit.nnx.plan(model, images, method=lambda model, x: model.conv(x))
    assert rows(by_name)["conv/kernel"].sigma == pytest.approx(
        rows(as_function)["conv/kernel"].sigma
    )
    left = {left.path: left.reason.name for left in by_name.left_alone}
    assert left["head/kernel"] == "UNUSED"


def test_only_and_skip() -> None:
    plan = anyinit.nnx.plan(Listed(nnx.Rngs(0)), vectors(0), skip="head/*")
    assert "head/kernel" not in rows(plan)
    plan = anyinit.nnx.plan(Listed(nnx.Rngs(0)), vectors(0), only="*/up/kernel")
    assert len(plan.weights) == 3


def test_constant_weights_keep_their_values() -> None:
    model = Listed(nnx.Rngs(0))
    for block in model.blocks:
        block.down.kernel.set_value(jnp.zeros_like(block.down.kernel.get_value()))
    plan = anyinit.nnx.init(model, vectors(0))
    assert all(np.all(block.down.kernel.get_value() == 0) for block in model.blocks)
    reasons = {left.path: left.reason.name for left in plan.left_alone}
    assert reasons["blocks/0/down/kernel"] == "CONSTANT"


def test_almost_constant_large_weight_counts_as_drawn() -> None:
    model = nnx.Linear(512, 512, use_bias=False, rngs=nnx.Rngs(0))
    kernel = jnp.zeros((512, 512)).at[1, 1].set(1.0)
    model.kernel.set_value(kernel)
    plan = anyinit.nnx.plan(model, normal(0, (4, 512)))
    assert len(plan.weights) == 1


def test_training_and_evaluation_modes() -> None:
    model = Normalized(nnx.Rngs(0))
    model.eval()
    plan = anyinit.nnx.init(model, normal(0, (4, 12, 12, 3)))
    assert "norm/mean" in {left.path for left in plan.left_alone}


def test_to_linen_bridge() -> None:
    model = nnx.bridge.ToLinen(nnx.Linear, args=(D, OUT))
    variables = anyinit.flax.init(model, jax.random.key(0), vectors(0))
    assert moment(model.apply(variables, vectors(1))) == pytest.approx(1, abs=0.1)


def test_to_nnx_bridge() -> None:
    class Mixed(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.inside = nnx.bridge.ToNNX(nn.Dense(2 * D), rngs=rngs)
            nnx.bridge.lazy_init(self.inside, vectors(0))
            self.head = nnx.Linear(2 * D, OUT, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.head(nnx.relu(self.inside(x)))

    model = Mixed(nnx.Rngs(0))
    plan = anyinit.nnx.init(model, vectors(0))
    assert sorted(rows(plan)) == ["head/kernel", "inside/kernel"]
    assert moment(model(vectors(1))) == pytest.approx(1, abs=0.1)


def test_plan_inside_jit_is_made_before() -> None:
    plan = anyinit.nnx.plan(Scanned, jax.ShapeDtypeStruct((8, 32), jnp.int32))

    @nnx.jit
    def create() -> Scanned:
        model = Scanned(nnx.Rngs(0))
        nnx.update(model, plan.rescale(nnx.state(model)))
        return model

    assert moment(create()(idx(1))) == pytest.approx(1, abs=0.2)


def test_init_inside_jit_says_what_to_do() -> None:
    @nnx.jit
    def create() -> Scanned:
        model = Scanned(nnx.Rngs(0))
        anyinit.nnx.init(model, idx(0))
        return model

    with pytest.raises(TypeError, match=r"has no values yet.*plan\.rescale"):
        create()


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (nn.Dense(4), r"got flax\.linen\.linear\.Dense\. For such a model use anyinit\.flax\."),
        (nnx.Linear, "Linear itself, a class"),
        (3, "got int"),
    ],
    ids=["linen", "class", "number"],
)
def test_no_module(model: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        anyinit.nnx.init(model, vectors(0))


def test_nothing_drawn() -> None:
    model = nnx.LayerNorm(D, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="no drawn weight"):
        anyinit.nnx.init(model, vectors(0))


def test_unknown_mode() -> None:
    with pytest.raises(ValueError, match="Unknown mode: got mode='measured'"):
        anyinit.nnx.init(Listed(nnx.Rngs(0)), vectors(0), mode="measured")


def test_only_a_few_entries_leave_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[int] = []
    original = jax.device_get

    def fetch(tree: Any) -> Any:
        fetched.extend(leaf.size for leaf in jax.tree.leaves(tree))
        return original(tree)

    monkeypatch.setattr(jax, "device_get", fetch)
    anyinit.nnx.plan(nnx.Linear(2048, 1024, rngs=nnx.Rngs(0)), normal(0, (4, 2048)))
    assert fetched and max(fetched) <= 8192


def test_core_does_not_import_nnx_of_its_own() -> None:
    code = "import sys, anyinit; print('anyinit.nnx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_an_error_of_the_module_says_what_it_was_called_with() -> None:
    model = nnx.Linear(D, D, rngs=nnx.Rngs(0))
    with pytest.raises(Exception) as caught:
        anyinit.nnx.plan(model, jax.random.key(0), normal(0, (8, D)))
    note = "\n".join(caught.value.__notes__)
    assert "anyinit called Linear with key<" in note
    assert "The first is a random key: plan takes none, plan(model, x)" in note
