"""Recurrent layers as one loop over time, not one copy a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from anyinit_torch._lowerings.lowering import Lowering, Result

Step = Callable[[Any, tuple[Any, ...], "_Weights"], tuple[Any, ...]]


class _Weights:
    """The weights of one layer and direction."""

    def __init__(self, parts: Sequence[Any], has_biases: bool, projected: bool) -> None:
        self.input, self.hidden = parts[:2]
        self.input_bias: Any = parts[2] if has_biases else None
        self.hidden_bias: Any = parts[3] if has_biases else None
        self.projection = parts[-1] if projected else None

    def from_input(self, x: Any) -> Any:
        return _affine(x, self.input, self.input_bias)

    def from_hidden(self, h: Any) -> Any:
        return _affine(h, self.hidden, self.hidden_bias)


def _affine(x: Any, weight: Any, bias: Any) -> Any:
    y = jnp.matmul(x, jnp.swapaxes(weight, 0, 1))
    return y if bias is None else y + jnp.broadcast_to(bias, y.shape)


def _lstm_step(x: Any, state: tuple[Any, ...], weights: _Weights) -> tuple[Any, ...]:
    hidden, cell = state
    gates = weights.from_input(x) + weights.from_hidden(hidden)
    enter, forget, value, leave = jnp.split(gates, 4, -1)
    cell = lax.logistic(forget) * cell + lax.logistic(enter) * lax.tanh(value)
    hidden = lax.logistic(leave) * lax.tanh(cell)
    if weights.projection is not None:
        hidden = _affine(hidden, weights.projection, None)
    return hidden, cell


def _gru_step(x: Any, state: tuple[Any, ...], weights: _Weights) -> tuple[Any, ...]:
    (hidden,) = state
    reset_x, update_x, value_x = jnp.split(weights.from_input(x), 3, -1)
    reset_h, update_h, value_h = jnp.split(weights.from_hidden(hidden), 3, -1)
    reset, update = lax.logistic(reset_x + reset_h), lax.logistic(update_x + update_h)
    value = lax.tanh(value_x + reset * value_h)
    return (value + update * (hidden - value),)


def _plain_step(activation: Callable[[Any], Any]) -> Step:
    def step(x: Any, state: tuple[Any, ...], weights: _Weights) -> tuple[Any, ...]:
        return (activation(weights.from_input(x) + weights.from_hidden(state[0])),)

    return step


def _layers(step: Step) -> Lowering:
    """All layers and directions; returns the outputs and each last state, stacked."""

    def lowering(
        result: Result,
        x: Any,
        initial: Any,
        params: Sequence[Any],
        has_biases: bool,
        layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Any, ...]:
        states = tuple(initial) if isinstance(initial, list | tuple) else (initial,)
        projected = states[0].shape[-1] != states[-1].shape[-1]
        x = jnp.swapaxes(x, 0, 1) if batch_first else x
        directions = 2 if bidirectional else 1
        each = (4 if has_biases else 2) + (1 if projected else 0)
        finals: list[list[Any]] = [[] for _ in states]
        for layer in range(layers):
            outputs = []
            for number in range(layer * directions, (layer + 1) * directions):
                parts = params[number * each : (number + 1) * each]
                weights = _Weights(parts, has_biases, projected)

                def body(state: Any, item: Any, weights: _Weights = weights) -> Any:
                    following = step(item, state, weights)
                    return following, following[0]

                start = tuple(state[number] for state in states)
                is_backward = number % directions == 1
                last, steps = lax.scan(body, start, x, reverse=is_backward)
                outputs.append(steps)
                for collected, part in zip(finals, last, strict=True):
                    collected.append(part)
            x = outputs[0] if directions == 1 else jnp.concatenate(outputs, -1)
            if dropout and train and layer < layers - 1:
                kept = jax.random.bernoulli(result.key(), 1.0 - dropout, x.shape)
                x = lax.select(kept, x / (1.0 - dropout), jnp.zeros_like(x))
        x = jnp.swapaxes(x, 0, 1) if batch_first else x
        return (x, *(jnp.stack(parts) for parts in finals))

    return lowering


def _lstm_cell(result: Result, x: Any, state: Sequence[Any], *params: Any) -> Any:
    return _lstm_step(x, tuple(state), _Weights(params, len(params) > 2, projected=False))


def _single_cell(step: Step) -> Lowering:
    def lowering(result: Result, x: Any, hidden: Any, *params: Any) -> Any:
        return step(x, (hidden,), _Weights(params, len(params) > 2, projected=False))[0]

    return lowering


def _relu(x: Any) -> Any:
    return lax.max(x, jnp.zeros_like(x))


LOWERINGS: dict[str, Lowering] = {
    "gru.input": _layers(_gru_step),
    "gru_cell.default": _single_cell(_gru_step),
    "lstm.input": _layers(_lstm_step),
    "lstm_cell.default": _lstm_cell,
    "rnn_relu.input": _layers(_plain_step(_relu)),
    "rnn_relu_cell.default": _single_cell(_plain_step(_relu)),
    "rnn_tanh.input": _layers(_plain_step(lax.tanh)),
    "rnn_tanh_cell.default": _single_cell(_plain_step(lax.tanh)),
}
