"""keras_hub's backbones with random weights: the logits come out at 1, the table at 1/(c√d)."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("KERAS_BACKEND", "jax")
keras = pytest.importorskip("keras", reason="Keras is not installed")
pytest.importorskip("keras_hub", reason="keras_hub is not installed")

from keras_hub_models import HUB, D
from keras_measure import assert_complete, moment, moment_of_others, rms

import anyinit.keras

pytestmark = [
    pytest.mark.standard_promotion,
    # Keras hands numpy.array variables and tensors that do not know copy=.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    # keras_hub's T5 passes the mask as an argument and lets the one on its input go.
    pytest.mark.filterwarnings("ignore:Layer '.*' .of type T5MultiHeadAttention:UserWarning"),
]


@pytest.mark.parametrize("name", HUB)
def test_logits_and_tied_table(name: str) -> None:
    make, inputs, read, c = HUB[name]
    model = make()
    plan = anyinit.keras.init(model)
    assert_complete(plan, model)
    (row,) = [row for row in plan.weights if row.is_tied]
    assert row.path == "token_embedding/embeddings"
    assert row.m == pytest.approx(1 / c, rel=1e-3)
    (table,) = [v for v in model.variables if v.path == row.path]
    assert rms(table) == pytest.approx(1 / (c * D**0.5), rel=0.02)
    batch = inputs(1)
    logits = model(batch)
    found = moment_of_others(logits, batch[read]) if read else moment(logits)
    assert 0.8 <= found <= 1.25
