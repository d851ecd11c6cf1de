"""Measuring PyTorch modules: init_ with mode="empirical", and measure."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn
from torch_measure import moment, normal, rows, tokens

import anyinit.torch
from anyinit import UnhealthyError
from anyinit._findings import Kind

WIDTH, VOCAB = 128, 500


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@torch.library.custom_op("anyinit_tests::louder", mutates_args=())
def louder(x: torch.Tensor, factor: float) -> torch.Tensor:
    """An operator that no table knows."""
    return x * factor


@louder.register_fake
def _(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.empty_like(x)


class Tied(nn.Module):
    """A tied readout with a factor that is computed from the signal, batch norm and dropout."""

    def __init__(self, tied: bool = True, operator: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, WIDTH, padding_idx=0)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.dropout, self.last = nn.Dropout(0.2), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        if tied:
            self.head.weight = self.table.weight
        self.operator = operator

    def forward(self, idx: torch.Tensor) -> torch.Tensor:
        x = self.table(idx)
        h = self.norm(x.transpose(1, 2)).transpose(1, 2)
        if self.operator:
            h = torch.ops.anyinit_tests.louder(h, 5.0)
        x = x + self.dropout(self.down(torch.relu(self.up(h))))
        return self.head(self.last(x)) * (3 / x.std())


def idx(seed: int) -> Any:
    return tokens(seed, VOCAB, 8, 24)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_factor_computed_from_the_signal(tied: bool) -> None:
    model = Tied(tied)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    plan = anyinit.torch.init_(model, idx(0), mode="empirical")
    assert torch.equal(state, torch.get_rng_state())
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name]), name
    assert not model.table.weight[0].any(), "the padding row"
    with torch.no_grad():
        output = copy.deepcopy(model)(idx(0))
    assert moment(output) == pytest.approx(1, abs=0.05)
    assert "measured on a batch" in str(plan)
    assert anyinit.torch.param_groups(model, plan, lr=1e-3)
    anyinit.torch.measure(model, idx(1), plan=plan).assert_healthy(tolerance=0.3)


def test_second_call_changes_nothing() -> None:
    model = Tied()
    first = anyinit.torch.init_(model, idx(0), mode="empirical")
    before = {name: tensor.clone() for name, tensor in model.named_parameters()}
    second = anyinit.torch.init_(model, idx(0), mode="empirical")
    for name, tensor in model.named_parameters():
        torch.testing.assert_close(tensor, before[name], rtol=1e-5, atol=0)
    for row in first.weights:
        assert rows(second)[row.path].sigma == pytest.approx(row.sigma, rel=1e-4)


def test_operators_without_a_lowering_are_run_by_torch() -> None:
    model = Tied(operator=True)
    plan = anyinit.torch.init_(model, idx(0), mode="empirical")
    assert Kind.NO_RULE in {finding.kind for finding in plan.findings}
    # The operator makes its input five times larger, which the analysis cannot know.
    assert rows(plan)["up.weight"].moment_in == pytest.approx(25, rel=0.05)
    assert rows(plan)["up.weight"].sigma == pytest.approx(1 / 5 / WIDTH**0.5, rel=0.05)
    check = anyinit.torch.measure(model, idx(0), plan=plan)
    check.assert_healthy(tolerance=0.05)
    analytic = anyinit.torch.init_(Tied(operator=True), idx(0))
    with pytest.raises(UnhealthyError, match=r"up\.weight"):
        model = Tied(operator=True)
        anyinit.torch.init_(model, idx(0))
        anyinit.torch.measure(model, idx(0), plan=analytic).assert_healthy()


def test_precision_and_biases() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 32)).to(
        torch.bfloat16
    )
    x = normal(0, 64, WIDTH).to(torch.bfloat16)
    bias = model[0].bias.clone()
    anyinit.torch.init_(model, x, mode="empirical")
    assert torch.equal(bias, model[0].bias)
    with torch.no_grad():
        assert moment(model(x).float() - model[2].bias) == pytest.approx(1, abs=0.03)


def test_double_precision_is_scaled_in_place() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, 32, bias=False)).double()
    x = normal(0, 64, WIDTH).double()
    anyinit.torch.init_(model, x, mode="empirical")
    with torch.no_grad():
        assert moment(model(x)) == pytest.approx(1, abs=1e-3)
    assert model[0].weight.dtype == torch.float64


def test_refused_arguments() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, 32))
    before = model[0].weight.clone()
    x = normal(0, 8, WIDTH)
    x[0, 0] = float("nan")
    with pytest.raises(ValueError, match="holds NaN"):
        anyinit.torch.init_(model, x, mode="empirical")
    with pytest.raises(ValueError, match="All entries of the batch are equal"):
        anyinit.torch.init_(model, torch.zeros(8, WIDTH), mode="empirical")
    with pytest.raises(ValueError, match="meta device"):
        with torch.device("meta"):
            abstract = nn.Linear(WIDTH, 32)
        anyinit.torch.init_(abstract, normal(0, 8, WIDTH), mode="empirical")
    plan = anyinit.torch.plan(nn.Linear(64, 32), normal(0, 8, 64))
    with pytest.raises(ValueError, match="does not belong to this model"):
        anyinit.torch.measure(model, normal(0, 8, WIDTH), plan=plan)
    assert torch.equal(before, model[0].weight)
    one = anyinit.torch.init_(model, normal(0, 1, WIDTH), mode="empirical")
    assert Kind.ONE_EXAMPLE in {finding.kind for finding in one.findings}


def test_measure_of_a_model_as_torch_draws_it() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 32))
    with pytest.raises(UnhealthyError, match="smaller than predicted"):
        anyinit.torch.measure(model, normal(0, 64, WIDTH)).assert_healthy()
    plan = anyinit.torch.init_(model, normal(0, 64, WIDTH))
    anyinit.torch.measure(model, normal(1, 64, WIDTH), plan=plan).assert_healthy()
