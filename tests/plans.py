"""Plans written by hand."""

from __future__ import annotations

from typing import Any

from anyinit._findings import Finding, Kind, Reason
from anyinit._plan.plan import LeftAlone, Plan, WeightPlan

TIED = ("lookup", "readout")


def weight(path: str, shape: tuple[int, ...], **fields: Any) -> WeightPlan:
    """A row of the plan; what is not given is that of a kernel before a nonlinearity."""
    row: dict[str, Any] = {
        "dtype": "float32",
        "roles": ("kernel",),
        "site": "nonlinearity",
        "where": "model.py:12",
        "fan": shape[0],
        "moment_in": 1.0,
        "c": 1.0,
        "target": 1.0,
        "at_most": False,
        "std_before": 0.02,
        "sigma": shape[0] ** -0.5,
        "m": 1.0,
    }
    return WeightPlan(path=path, shape=shape, **(row | fields))


def constants(*paths: str) -> tuple[LeftAlone, ...]:
    return tuple(LeftAlone(path, Reason.CONSTANT) for path in paths)


def scaled_logits(vocab: int = 40, d: int = 16) -> Plan:
    """A tied model that scales its logits by 1/√d, with a learned position table."""
    return Plan(
        weights=(
            weight(
                "wte/embedding",
                (vocab, d),
                roles=TIED,
                site="output",
                fan=d,
                c=d**-0.5,
                sigma=1.0,
                m=d**0.5,
                arrival=1.0,
                own_token_logit=0.9 * d**0.5,
            ),
            weight("wpe/embedding", (8, d), roles=("lookup",), site="lookup", fan=1, sigma=1.0),
            weight("up/kernel", (d, d)),
        ),
        left_alone=constants("up/bias", "norm/scale"),
        findings=(Finding(Kind.NO_RULE, "erf_inv", "model.py:9"),),
        logits_moment=1.0,
        vocabulary=vocab,
    )
