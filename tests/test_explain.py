"""What a plan says of one parameter."""

from __future__ import annotations

import dataclasses

import pytest
from plans import TIED, weight

from anyinit._findings import Finding, Kind, Reason
from anyinit._plan.plan import LeftAlone, Plan

# Its four numbers give its scale: √(1 / (256 · 0.5)) / 0.25.
KERNEL = dataclasses.replace(
    weight("up/kernel", (256, 64), site="nonlinearity", where="gpt.py:31"),
    fan=256,
    moment_in=0.5,
    c=0.25,
    target=1.0,
    std_before=0.05,
    sigma=0.353553,
    m=4.0,
    aliases=("twin/kernel",),
)


def test_every_number_is_named() -> None:
    lines = Plan((KERNEL,)).explain("up/kernel").splitlines()
    assert lines[0] == "up/kernel = twin/kernel  256×64  kernel"
    assert lines[1] == "  site      nonlinearity  gpt.py:31"
    starts = ["target    1 ", "fan       256 ", "E[x²] in  0.5 ", "c         0.25 ", "m         4 "]
    for start, line in zip(starts, lines[2:7], strict=True):
        assert line.startswith(f"  {start}")
    assert lines[7] == "  std       0.354     √(target / (fan · E[x²])) / c, drawn with 0.05"
    assert len(lines) == 8


def test_by_another_name() -> None:
    plan = Plan((KERNEL,))
    assert plan.explain("twin/kernel") == plan.explain("up/kernel")


def test_an_upper_bound_says_why() -> None:
    text = Plan((dataclasses.replace(KERNEL, at_most=True),)).explain("up/kernel")
    assert "an upper bound: an average over tokens lies before it" in text


def test_layers_are_shown_with_the_first() -> None:
    text = Plan((dataclasses.replace(KERNEL, sigma=(0.353553, 0.2, 0.1)),)).explain("up/kernel")
    assert "(the first of 3 layers)" in text
    assert "std       0.354 … 0.1" in text
    assert "The formula gives" not in text


def test_a_scale_that_the_formula_does_not_give_is_said_with_its_finding() -> None:
    row = dataclasses.replace(KERNEL, sigma=0.0625)
    finding = Finding(Kind.RECURRENT, "up/kernel", "gpt.py:31")
    other = Finding(Kind.RECURRENT, "down/kernel", "gpt.py:32")
    text = Plan((row,), findings=(finding, other)).explain("up/kernel")
    assert "The formula gives 0.354" in text
    assert finding.message in text
    assert "down/kernel" not in text


def test_a_tied_table_says_what_its_lookup_does() -> None:
    row = weight("wte", (40, 16), roles=TIED, fan=16, arrival=1.0, own_token_logit=8.0)
    text = Plan((row,)).explain("wte")
    assert "Its lookup arrives with E[x²] = 1." in text
    assert "The logit of the token that was looked up is about 8." in text


def test_nothing_enters() -> None:
    text = Plan((dataclasses.replace(KERNEL, moment_in=0.0),)).explain("up/kernel")
    assert "The formula gives nan" in text


def test_left_alone() -> None:
    plan = Plan((), (LeftAlone("up/bias", Reason.CONSTANT),))
    assert plan.explain("up/bias") == f"up/bias\n  Left alone: {Reason.CONSTANT.value}"


def test_an_unknown_name_shows_what_looks_like_it() -> None:
    plan = Plan((KERNEL,), (LeftAlone("norm/scale", Reason.CONSTANT),))
    with pytest.raises(KeyError, match=r"no parameter 'up/kernl'\. Did you mean up/kernel"):
        plan.explain("up/kernl")
    with pytest.raises(KeyError, match=r"no parameter 'zzz'\. Its 3 names"):
        plan.explain("zzz")
