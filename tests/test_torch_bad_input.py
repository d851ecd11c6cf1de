"""Bad input: an error that names the thing and says what to do; nothing is changed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch_models as models
from torch import nn
from torch_measure import normal, rms, rows, tokens

import anyinit.torch


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def idx() -> Any:
    return tokens(0, models.VOCAB, 4, models.LENGTH)


class Unchanged:
    """Fails where the block changes anything of a model."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __enter__(self) -> None:
        self.before = [(p, p.detach().clone(), p._version) for p in self.model.parameters()]

    def __exit__(self, *_: Any) -> None:
        for parameter, values, version in self.before:
            assert parameter._version == version
            if not parameter.is_meta:
                assert torch.equal(parameter.detach(), values)


@pytest.fixture
def model() -> Iterator[Any]:
    made = models.Tied(64)
    with Unchanged(made):
        yield made


def test_meta_tensors() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    with pytest.raises(ValueError, match=r"0\.weight.*meta device.*First tie.*then.*init_.*wrap"):
        anyinit.torch.init_(model, torch.zeros(2, 8))
    assert anyinit.torch.plan(model, torch.zeros(2, 8)).weights


def test_one_meta_tensor_among_real_ones() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    model[2].weight = nn.Parameter(torch.empty(8, 8, device="meta"))
    with Unchanged(model), pytest.raises(ValueError, match=r"2\.weight is on the meta device"):
        anyinit.torch.init_(model, torch.zeros(2, 8))


def test_empty_shards(model: Any) -> None:
    model.extra = nn.Parameter(torch.empty(0))
    with pytest.raises(ValueError, match=r"extra has no elements.*shard.*wrap"):
        anyinit.torch.init_(model, idx())


def test_inputs_that_forward_rejects(model: Any) -> None:
    with pytest.raises(ValueError, match=r"rejects these inputs at torch_models\.py:\d+"):
        anyinit.torch.init_(model, torch.zeros(4, 64, dtype=torch.float32))
    with pytest.raises(ValueError, match=r"rejects these inputs.*positional argument"):
        anyinit.torch.init_(model)
    with pytest.raises(ValueError, match=r"rejects these inputs.*unexpected keyword"):
        anyinit.torch.init_(model, idx(), speed=3)


def test_wrong_width() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    with Unchanged(model), pytest.raises(ValueError, match="Sequential rejects these inputs"):
        anyinit.torch.init_(model, torch.zeros(2, 9))


def test_inputs_without_elements() -> None:
    model = nn.Linear(8, 8)
    with Unchanged(model), pytest.raises(ValueError, match="no elements"):
        anyinit.torch.init_(model, torch.zeros(0, 8))


def test_no_drawn_parameter() -> None:
    model = nn.LayerNorm(8)
    with Unchanged(model), pytest.raises(ValueError, match="LayerNorm has no drawn weight"):
        anyinit.torch.init_(model, torch.zeros(2, 8))
    with pytest.raises(ValueError, match="ReLU has no drawn weight: got 0 parameters"):
        anyinit.torch.init_(nn.ReLU(), torch.zeros(2, 8))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("how", ["script", "trace"])
def test_scripted_modules(how: str) -> None:
    model = nn.Linear(8, 8)
    made = torch.jit.script(model) if how == "script" else torch.jit.trace(model, torch.zeros(2, 8))
    with Unchanged(model), pytest.raises(TypeError, match="scripted module"):
        anyinit.torch.init_(made, torch.zeros(2, 8))


@pytest.mark.parametrize("thing", [nn.Linear, torch.zeros(3), None, len])
def test_what_is_no_module(thing: Any) -> None:
    with pytest.raises(TypeError, match=r"Expected an instance of torch.nn.Module"):
        anyinit.torch.init_(thing, torch.zeros(2, 8))


def test_lazy_modules() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.Sequential(nn.LazyLinear(8))
    with pytest.raises(ValueError, match=r"0\.weight has no shape yet.*Run the model once"):
        anyinit.torch.init_(model, torch.zeros(2, 4))


class Jagged(nn.Module):
    """Shapes that depend on data."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(64, 64), nn.Linear(64, 20)

    def forward(self, x: Any) -> Any:
        h = self.first(x)
        kept = h[h.sum(-1) > 0]
        return self.head(torch.relu(kept))


def test_shapes_that_depend_on_data() -> None:
    # With values the forward pass can be run, and is.
    model = Jagged()
    plan = anyinit.torch.init_(model, normal(0, 64, 64))
    assert set(rows(plan)) == {"first.weight", "head.weight"}
    assert [finding.kind.name for finding in plan.findings] == ["ROUTE"]
    assert plan.findings[0].where.startswith("test_torch_bad_input.py:")
    # Without values no route is left; the line is named.
    with torch.device("meta"):
        abstract = Jagged()
    with pytest.raises(ValueError, match=r"at test_torch_bad_input\.py:\d+.*no values"):
        anyinit.torch.plan(abstract, torch.zeros(64, 64, device="meta"))


@pytest.mark.parametrize("mode", ["Empirical", "exact", None])
def test_unknown_modes(model: Any, mode: Any) -> None:
    with pytest.raises(ValueError, match="Unknown mode"):
        anyinit.torch.init_(model, idx(), mode=mode)


@pytest.mark.parametrize("moment", [0, -1.0, float("nan"), float("inf"), "1"])
def test_impossible_moments(model: Any, moment: Any) -> None:
    with pytest.raises(ValueError, match="no second moment"):
        anyinit.torch.init_(model, idx(), input_moment=moment)


@pytest.mark.parametrize("option", ["only", "skip"])
def test_patterns_without_a_match(model: Any, option: str) -> None:
    with pytest.raises(ValueError, match=f"{option}='blocks.9.*' matches no drawn weight"):
        anyinit.torch.init_(model, idx(), **{option: "blocks.9.*"})


def test_signals_that_are_not_finite() -> None:
    class Undefined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            return self.head(torch.log(self.first(x)))

    model = Undefined()
    with Unchanged(model), pytest.raises(FloatingPointError, match="NaN or infinite"):
        anyinit.torch.init_(model, torch.zeros(2, 8))


class Declared(models.Tied):
    """Says that it is tied, as Hugging Face models do."""

    _tied_weights_keys = {"head.weight": "emb.weight"}  # noqa: RUF012


def test_ties_that_are_stored_apart() -> None:
    model = Declared(64)
    model.load_state_dict(
        {name: tensor.clone() for name, tensor in model.state_dict().items()}, assign=True
    )
    assert model.head.weight is not model.emb.weight
    with pytest.warns(UserWarning, match=r"head\.weight and emb\.weight are declared tied"):
        plan = anyinit.torch.init_(model, idx())
    assert rms(model.emb.weight) == pytest.approx(1, rel=0.02)
    assert rms(model.head.weight) == pytest.approx(1 / 8, rel=0.02)
    assert not rows(plan)["emb.weight"].is_tied
    assert any(finding.kind.name == "SPLIT_TIE" for finding in plan.findings)


def test_ties_that_hold_are_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        anyinit.torch.init_(Declared(64), idx())


def test_plan_of_another_model_is_not_applied() -> None:
    from anyinit_torch._rescale import rescale_

    plan = anyinit.torch.plan(models.LM(64, "D"), idx())
    model = models.Tied(64)
    with Unchanged(model), pytest.raises(ValueError, match="nothing was changed"):
        rescale_(model, plan)


def test_operators_without_a_lowering_are_reported() -> None:
    class Unknown(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(32, 32), nn.Linear(32, 16)

        def forward(self, x: Any) -> Any:
            return self.head(torch.special.bessel_j0(self.first(x)))

    model = Unknown()
    plan = anyinit.torch.init_(model, normal(0, 8, 32))
    (finding,) = plan.findings
    assert "bessel_j0" in finding.message
    assert finding.where.startswith("test_torch_bad_input.py:")
    assert set(rows(plan)) == {"first.weight", "head.weight"}
