"""Every lowering computes what the TensorFlow operator computes, on real numbers."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

if os.environ.get("KERAS_BACKEND") != "tensorflow":
    pytest.skip("TensorFlow is for its own backend", allow_module_level=True)
tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

import jax
import keras
import numpy as np

import anyinit.keras
from anyinit_tensorflow import replay
from anyinit_tensorflow._lowerings.table import DRAWING, LOWERINGS

pytestmark = pytest.mark.standard_promotion

USED: set[str] = set()


def randn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def positive(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).uniform(0.2, 0.9, shape).astype("float32")


def whole(*shape: int) -> np.ndarray:
    return np.random.default_rng(2).integers(0, 7, shape).astype("int32")


def graph_of(function: Callable[..., Any], *arrays: np.ndarray) -> Any:
    """A function as a graph; notes the operators of it and of the graphs that it calls."""
    made = tf.function(lambda given: function(*given), autograph=False).get_concrete_function(
        [tf.TensorSpec(array.shape, array.dtype) for array in arrays]
    )
    definition = made.graph.as_graph_def()
    USED.update(node.op for node in definition.node)
    USED.update(node.op for called in definition.library.function for node in called.node_def)
    return made


def run(made: Any, *arrays: np.ndarray) -> list[np.ndarray]:
    def traced(given: list[Any]) -> Any:
        return replay(made, given, jax.random.key(0))

    closed = jax.make_jaxpr(traced)(list(arrays))
    assert not {e.primitive.name for e in closed.eqns} & set(dir(tf.raw_ops)), "an opaque operator"
    return [np.asarray(value) for value in jax.jit(traced)(list(arrays))]


def compare(function: Callable[..., Any], *arrays: np.ndarray, tolerance: float = 2e-5) -> None:
    expected = tf.nest.flatten(function(*[tf.constant(array) for array in arrays]))
    found = run(graph_of(function, *arrays), *arrays)
    assert len(expected) == len(found)
    for one, two in zip(expected, found, strict=True):
        assert tuple(one.shape) == two.shape
        np.testing.assert_allclose(
            two.astype(np.float64),
            one.numpy().astype(np.float64),
            rtol=tolerance,
            atol=tolerance,
        )


UNARY = """Abs Acos Asin Asinh Atan Atanh Ceil Cos Cosh Digamma Elu Erf Erfc Erfinv Exp Expm1 Floor
Inv IsFinite IsInf IsNan Lgamma Log Log1p Neg Reciprocal Relu Relu6 Rint Round Rsqrt Selu Sigmoid
Sign Sin Sinh Softplus Softsign Sqrt Square Tan Tanh OnesLike ZerosLike Snapshot Softmax
LogSoftmax StopGradient""".split()

BINARY = """Add AddV2 Atan2 Div Equal FloorDiv FloorMod Greater GreaterEqual Less LessEqual Maximum
Minimum Mod Mul NotEqual Pow RealDiv SquaredDifference Sub DivNoNan MulNoNan Xdivy Xlog1py
Xlogy""".split()

WHOLE = """BitwiseAnd BitwiseOr BitwiseXor FloorDiv FloorMod LeftShift RightShift TruncateDiv
TruncateMod""".split()


def raw(name: str, *arguments: Any, **named: Any) -> Any:
    function = getattr(tf.raw_ops, name)
    names = list(function.__signature__.parameters)
    return function(**dict(zip(names, arguments, strict=False)), **named)


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    signed = {"Neg", "Abs", "Elu", "Selu", "Relu", "Relu6", "Sign", "Softsign", "Tanh", "Round"}
    compare(lambda x: raw(name, x), 3 * randn(4, 5) if name in signed else positive(4, 5))


@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str) -> None:
    compare(lambda x, y: raw(name, x, y), positive(4, 5), positive(5) + 0.05)
    if name.endswith("NoNan") or name.startswith("X"):
        zero = np.float32([0, 2, 0])
        compare(lambda x, y: raw(name, x, y), zero, zero[::-1].copy())


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers(name: str) -> None:
    compare(lambda x, y: raw(name, x, y), whole(4, 5), np.int32([1, 2, 3, 4, 1]))


def strided(x: Any) -> Any:
    return (x[:, 1], x[..., ::2], x[1:, tf.newaxis, -2:], x[::-1], x[0, 1:3], x[tf.shape(x)[0] - 1])


def convolutions(layout: str = "NHWC", **options: Any) -> Callable[..., Any]:
    return lambda x, k: tf.nn.conv2d(x, k, data_format=layout, **options)


CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "acosh": (lambda x: raw("Acosh", x), (positive(4) + 1,)),
    "add_n": (lambda x, y: tf.add_n([x, y, x]), (randn(3), randn(3, seed=1))),
    "logical": (
        lambda x: (
            tf.logical_not(x > 0),
            tf.logical_and(x > 0, x < 1),
            tf.logical_or(x > 0, x < -1),
        ),
        (randn(9),),
    ),
    "invert": (lambda x: tf.bitwise.invert(x), (whole(4),)),
    "cast": (lambda x: (tf.cast(x, tf.int32), tf.cast(x, tf.bool)), (3 * randn(5),)),
    "leaky": (lambda x: tf.nn.leaky_relu(x, 0.3), (randn(5),)),
    "select": (
        lambda x: (
            tf.where(x > 0, x, 0.1),
            raw("Select", x[:, 0] > 0, x, -x),
            raw("Select", x > 0, x, -x),
        ),
        (randn(4, 3),),
    ),
    "same": (
        lambda x: (
            tf.identity_n([x, x])[1],
            raw("PreventGradient", x),
            raw("CheckNumerics", x, "x"),
            tf.ensure_shape(x, (3,)),
            raw("PlaceholderWithDefault", x, (3,)),
            raw("DebugGradientIdentity", x),
        ),
        (randn(3),),
    ),
    "truncated_division": (lambda x: tf.truncatediv(x, 3), (whole(5) - 3,)),
    "strided": (strided, (randn(4, 6),)),
    "slices": (
        lambda x, i: (
            tf.slice(x, [1, 0], [2, -1]),
            tf.slice(x, tf.stack([i[0], 0]), [2, 3]),
            x[i[0]],
        ),
        (randn(4, 6), np.int32([1])),
    ),
    "layout": (
        lambda x: (
            tf.reshape(x, (-1, 2)),
            tf.transpose(x, (2, 0, 1)),
            tf.expand_dims(x, 1),
            tf.squeeze(x[:, :1], 1),
            tf.squeeze(x[:1, :1]),
            tf.tile(x, (1, 2, 1)),
            tf.broadcast_to(x[:, :1], x.shape),
            tf.stack([x, -x], -1),
            tf.unstack(x, axis=1),
            tf.concat([x, x], -1),
            tf.split(x, 2, 2),
            tf.split(x, [1, 3], 2),
            tf.reverse(x, [1]),
            tf.roll(x, [1, 2], [0, 2]),
        ),
        (randn(3, 2, 4),),
    ),
    "filled": (
        lambda x: (tf.fill((2, 3), x[0]), tf.linalg.band_part(tf.fill((3, 3), x[0]), 1, 0)),
        (randn(2),),
    ),
    "shapes": (
        lambda x: (
            tf.cast(raw("Shape", x)[1], tf.float32) * x,
            tf.cast(raw("Size", x), tf.float32) * x,
            tf.cast(raw("Rank", x), tf.float32) * x,
            tf.cast(raw("ShapeN", [x, x])[1][0], tf.float32) * x,
        ),
        (randn(3, 2),),
    ),
    "padding": (
        lambda x: (
            tf.pad(x, [[1, 2], [0, 1]]),
            tf.pad(x, [[1, 2], [0, 1]], constant_values=3.0),
            tf.pad(x, [[1, 1], [0, 1]], "REFLECT"),
            tf.pad(x, [[1, 1], [0, 1]], "SYMMETRIC"),
        ),
        (randn(3, 4),),
    ),
    "bands": (
        lambda x: (tf.linalg.band_part(x, 1, -1), tf.linalg.band_part(x, -1, 0)),
        (randn(2, 4, 5),),
    ),
    "space": (
        lambda x: tf.batch_to_space(
            2 * tf.space_to_batch(x, [2, 3], [[1, 0], [0, 2]]), [2, 3], [[0, 1], [1, 0]]
        ),
        (randn(2, 5, 4, 3),),
    ),
    "resized": (
        lambda x: (tf.image.resize(x, (8, 6)), tf.image.resize(x, (8, 6), "nearest")),
        (randn(2, 4, 3, 2),),
    ),
    "gather": (
        lambda x, i: (
            tf.gather(x, i % 3),
            tf.gather(x, i % 4, axis=1),
            tf.gather(x, i[:3] % 4, batch_dims=1),
            tf.gather_nd(x, tf.stack([i % 3, i % 4], -1)),
        ),
        (randn(3, 4), whole(5)),
    ),
    "scatter": (
        lambda x, i: (
            tf.scatter_nd(i[:, None], x, (9,)),
            tf.tensor_scatter_nd_update(x, [[1], [3]], x[:2]),
            tf.tensor_scatter_nd_add(x, i[:, None] % 5, x),
            keras.ops.slice_update(x, i[:1] % 2, x[:2]),
        ),
        (randn(5), whole(5)),
    ),
    "one_hot": (
        lambda i: (tf.one_hot(i, 7), tf.one_hot(i, 5, 2.0, -1.0, axis=0)),
        (whole(2, 3),),
    ),
    "top": (lambda x: tuple(tf.math.top_k(x, 3)), (randn(2, 6),)),
    "reductions": (
        lambda x: (
            tf.reduce_sum(x, 0),
            tf.reduce_mean(x, (0, 2), keepdims=True),
            tf.reduce_max(x, -1),
            tf.reduce_min(x),
            tf.reduce_prod(x, 1),
            tf.reduce_all(x > -2, 1),
            tf.reduce_any(x > 1, 1),
            tf.argmax(x, 1),
            tf.argmin(x, -1),
            tf.nn.l2_loss(x),
        ),
        (randn(2, 3, 4),),
    ),
    "cumulative": (
        lambda x: (
            tf.cumsum(x, 1),
            tf.cumsum(x, 0, exclusive=True, reverse=True),
            tf.math.cumprod(x, 1, exclusive=True),
        ),
        (randn(3, 4),),
    ),
    "batch_norm": (
        lambda x, s: (
            tf.compat.v1.nn.fused_batch_norm(x, s, s, epsilon=0.1)[0],
            tf.compat.v1.nn.fused_batch_norm(x, s, s, s, s + 1, is_training=False)[0],
        ),
        (randn(2, 3, 3, 4), positive(4)),
    ),
    "products": (
        lambda x, y: (
            tf.matmul(x, y),
            tf.matmul(x, x, transpose_a=True),
            tf.matmul(y, y, transpose_b=True),
            tf.matmul(tf.stack([x, x]), tf.stack([y, y])),
            tf.matmul(tf.stack([x, x]), tf.stack([x, x]), transpose_b=True),
            tf.einsum("ij,jk->ki", x, y),
        ),
        (randn(3, 4), randn(4, 5)),
    ),
    "bias": (lambda x, b: tf.nn.bias_add(x, b), (randn(2, 3), randn(3))),
    "convolution": (
        convolutions(strides=2, padding="SAME"),
        (randn(2, 7, 6, 4), randn(3, 3, 4, 5)),
    ),
    "dilated": (
        convolutions(strides=1, padding=[[0, 0], [1, 2], [2, 0], [0, 0]], dilations=2),
        (randn(2, 9, 8, 4), randn(3, 3, 4, 5)),
    ),
    "grouped": (
        convolutions(strides=1, padding="VALID"),
        (randn(2, 5, 6, 4), randn(3, 3, 2, 6)),
    ),
    "volume": (
        lambda x, k: tf.nn.conv3d(x, k, (1, 1, 2, 1, 1), "SAME"),
        (randn(2, 4, 5, 4, 3), randn(2, 3, 2, 3, 4)),
    ),
    "depthwise": (
        lambda x, k: tf.nn.depthwise_conv2d(x, k, (1, 2, 2, 1), "SAME"),
        (randn(2, 6, 6, 3), randn(3, 3, 3, 2)),
    ),
    "transposed": (
        lambda x, k: tf.nn.conv2d_transpose(x, k, (2, 9, 8, 4), 2, "SAME"),
        (randn(2, 5, 4, 5), randn(3, 3, 4, 5)),
    ),
    "transposed_volume": (
        lambda x, k: tf.nn.conv3d_transpose(x, k, (2, 7, 7, 7, 3), 2, "VALID"),
        (randn(2, 3, 3, 3, 4), randn(3, 3, 3, 3, 4)),
    ),
    "pools": (
        lambda x: (
            tf.nn.max_pool2d(x, 2, 2, "SAME"),
            tf.nn.avg_pool2d(x, 2, 2, "SAME"),
            tf.nn.avg_pool2d(x, 3, 1, "VALID"),
        ),
        (randn(2, 5, 5, 3),),
    ),
    "volume_pools": (
        lambda x: (tf.nn.max_pool3d(x, 2, 2, "SAME"), tf.nn.avg_pool3d(x, 2, 2, "SAME")),
        (randn(2, 3, 5, 4, 2),),
    ),
    "branches": (
        lambda x: (
            tf.cond(x[0] > 0, lambda: x, lambda: 2 * x),
            tf.cond(tf.shape(x)[0] > 2, lambda: x, lambda: 2 * x),
            tf.switch_case(tf.cast(x[0] > 0, tf.int32), [lambda: x, lambda: 3 * x]),
            tf.function(lambda y: y + 1)(x),
        ),
        (randn(3),),
    ),
    "counting_loop": (
        lambda x: tf.while_loop(lambda i, c: i < 5, lambda i, c: (i + 1, tf.sin(c)), (0, x))[1],
        (randn(3),),
    ),
    "searching_loop": (
        lambda x: tf.while_loop(lambda c: tf.reduce_sum(c) < 9, lambda c: (c * 2,), (x,)),
        (positive(3),),
    ),
    "no_loop": (
        lambda x: tf.while_loop(lambda i, c: i < 0, lambda i, c: (i + 1, tf.sin(c)), (0, x))[1],
        (randn(3),),
    ),
    "map": (lambda x: tf.map_fn(lambda row: tf.sin(row) + row[0], x), (randn(4, 3),)),
    "scan": (lambda x: tf.scan(lambda c, row: c / 2 + row, x, tf.zeros(3)), (randn(40, 3),)),
    "backwards": (
        lambda x: tf.scan(lambda c, row: c / 2 + row, x, tf.zeros(3), reverse=True),
        (randn(4, 3),),
    ),
    "last_only": (lambda x: keep_last(x), (randn(5, 3),)),
    "length": (
        lambda x: (
            x
            * tf.cast(
                raw(
                    "TensorListLength", raw("TensorListReserve", (2,), 3, element_dtype=tf.float32)
                ),
                tf.float32,
            )
        ),
        (randn(2),),
    ),
}


def keep_last(x: Any) -> Any:
    """A loop that writes to one place again and again."""
    lines = tf.TensorArray(tf.float32, 5).unstack(x)
    kept = tf.TensorArray(tf.float32, 1, element_shape=(3,))
    _, kept = tf.while_loop(
        lambda i, _: i < 5, lambda i, k: (i + 1, k.write(0, 2 * lines.read(i))), (0, kept)
    )
    return kept.stack()


@pytest.mark.parametrize("name", CASES)
def test_operators(name: str) -> None:
    function, arrays = CASES[name]
    compare(function, *arrays)


def test_every_lowering_is_tested() -> None:
    for function, arrays in CASES.values():
        graph_of(function, *arrays)
    tested = USED | set(UNARY) | set(BINARY) | set(WHOLE)
    assert LOWERINGS.keys() - tested - DRAWING <= {
        "BatchMatMul",
        "BatchMatMulV3",
        "FusedBatchNorm",
        "FusedBatchNormV2",
        "StatelessRandomGetAlg",
    }


DRAWS: dict[str, tuple[Callable[[], Any], float, float]] = {
    "uniform": (lambda: tf.random.uniform((4000,)), 0.5, 1 / 12),
    "normal": (lambda: tf.random.normal((4000,)), 0.0, 1.0),
    "truncated": (lambda: tf.random.truncated_normal((4000,)), 0.0, 0.774),
    "whole": (lambda: tf.random.uniform((4000,), 2, 6, tf.int32), 3.5, 1.25),
    "stateless_uniform": (lambda: tf.random.stateless_uniform((4000,), (1, 2)), 0.5, 1 / 12),
    "stateless_normal": (lambda: tf.random.stateless_normal((4000,), (1, 2)), 0.0, 1.0),
    "stateless_truncated": (
        lambda: tf.random.stateless_truncated_normal((4000,), (1, 2)),
        0.0,
        0.774,
    ),
    "stateless_whole": (
        lambda: tf.random.stateless_uniform((4000,), (1, 2), 2, 6, tf.int32),
        3.5,
        1.25,
    ),
    "chosen": (lambda: tf.random.categorical(tf.zeros((2, 3)), 2000), 1.0, 2 / 3),
    "stateless_chosen": (
        lambda: tf.random.stateless_categorical(tf.zeros((2, 3)), 2000, (1, 2)),
        1.0,
        2 / 3,
    ),
    "gamma": (lambda: tf.random.gamma((4000,), 2.0), 2.0, 2.0),
    "stateless_gamma": (lambda: tf.random.stateless_gamma((4000,), (1, 2), 2.0), 2.0, 2.0),
    "shuffled": (lambda: tf.random.shuffle(tf.range(5000) % 5), 2.0, 2.0),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws(name: str) -> None:
    function, mean, variance = DRAWS[name]
    (found,) = run(graph_of(function))
    assert np.mean(found) == pytest.approx(mean, abs=0.1)
    assert np.var(found) == pytest.approx(variance, rel=0.1)
    assert np.var(np.ravel(found)[:50]) > 0


def test_an_unknown_operator_is_run_by_tensorflow() -> None:
    def function(x: Any) -> Any:
        return tf.nn.local_response_normalization(tf.reshape(x, (1, 1, 2, 6)))

    x = randn(12)
    made = graph_of(function, x)
    closed = jax.make_jaxpr(lambda x: replay(made, [x], jax.random.key(0)))(x)
    assert "LRN" in {equation.primitive.name for equation in closed.eqns}
    (found,) = jax.jit(lambda x: replay(made, [x], jax.random.key(0)))(x)
    np.testing.assert_allclose(found, function(tf.constant(x)).numpy(), rtol=1e-5)


class Normalized(keras.layers.Layer):
    """Responses normalized by their neighbours', which has no lowering."""

    def call(self, x: Any) -> Any:
        return tf.nn.local_response_normalization(x[:, None, None], beta=1.0)[:, 0, 0]


def test_an_unknown_operator_is_reported_with_its_line() -> None:
    inputs = keras.Input((64,))
    h = Normalized()(keras.layers.Dense(64)(inputs))
    plan = anyinit.keras.plan(keras.Model(inputs, keras.layers.Dense(8)(h)))
    line = Normalized.call.__code__.co_firstlineno + 1
    sites = {row.path.split("/")[0]: row for row in plan.weights}
    assert sites["dense"].where == f"{os.path.basename(__file__)}:{line}"
    # Each is divided by 1 + the sum of the squares of the eleven around it, itself included.
    assert sites["dense_1"].moment_in == pytest.approx(0.01, rel=0.3)


class Called(keras.layers.Layer):
    """Calls Python, and draws from TensorFlow's own random state."""

    calls = 0

    def call(self, x: Any) -> Any:
        def double(x: Any) -> Any:
            Called.calls += 1
            return 2 * x

        doubled = tf.py_function(double, [x], tf.float32)
        doubled.set_shape(x.shape)
        return doubled if x.shape[0] is None else doubled + 0 * tf.random.poisson(x.shape, 1.0)


def test_what_has_a_state_is_not_run() -> None:
    inputs = keras.Input((64,))
    h = Called()(keras.layers.Dense(64)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(8)(h))
    tf.random.set_seed(1)
    expected = tf.random.normal((3,)).numpy()
    before = Called.calls
    tf.random.set_seed(1)
    plan = anyinit.keras.plan(model)
    np.testing.assert_array_equal(tf.random.normal((3,)).numpy(), expected)
    assert Called.calls == before
    assert "EagerPyFunc" in {finding.subject for finding in plan.findings}
    with pytest.raises(Exception, match="cannot be run on its own"):
        anyinit.keras.init(model, randn(32, 64), mode="empirical")


def test_functions_of_tensorflow_that_read_variables() -> None:
    class Inner(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.kernel = self.add_weight(shape=(64, 64), initializer="normal")

        @tf.function
        def product(self, x: Any) -> Any:
            return x @ self.kernel

        def call(self, x: Any) -> Any:
            return self.product(x)

    layer, x = Inner(), tf.constant(randn(32, 64))
    layer.build((32, 64))
    layer.product(x)  # its graph reads the variable by its handle
    plan = anyinit.keras.init(layer, x, mode="empirical")
    assert [row.site for row in plan.weights] == ["output"]
    assert np.mean(layer(x).numpy() ** 2) == pytest.approx(1, rel=0.05)


def test_a_call_that_keeps_its_graph_is_refused() -> None:
    class Decorated(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.head = keras.layers.Dense(8)

        @tf.function
        def call(self, x: Any) -> Any:
            return self.head(x)

    with pytest.raises(ValueError, match=r"Decorated\.call is a tf\.function.*decorator off"):
        anyinit.keras.init(Decorated(), randn(4, 8))


def test_variables_that_belong_to_no_layer_are_read() -> None:
    table = tf.Variable(randn(4, 3))
    compare(lambda i: (tf.gather(table, i), table * 2), np.int32([1, 3]))


def test_a_shape_that_depends_on_values_is_refused() -> None:
    made = graph_of(lambda x: tf.boolean_mask(x, x > 0), randn(5))
    with pytest.raises(ValueError, match=r"needs .* as a number.*nothing was changed"):
        jax.make_jaxpr(lambda x: replay(made, [x], jax.random.key(0)))(randn(5))
