"""A plan as JSON text, and back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from anyinit._depth.stability import Nonlinearity, Stability
from anyinit._findings import Finding, Kind, Reason
from anyinit._plan.plan import LeftAlone, MeasuredMoment, Plan, PlannedMoment, WeightPlan
from anyinit._plan.watched import Place

VERSION = 1


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """The plan as dictionaries, lists, strings and numbers; see ``Plan.to_dict``."""
    return {
        "version": VERSION,
        "weights": [_plain(dataclasses.asdict(row)) for row in plan.weights],
        "left_alone": [
            {"path": left.path, "kind": left.reason.name, "reason": left.reason.value}
            for left in plan.left_alone
        ],
        "findings": [
            {
                "kind": finding.kind.name,
                "message": finding.message,
                "where": finding.where,
                "subject": finding.subject,
                "detail": finding.detail,
            }
            for finding in plan.findings
        ],
        "logits_moment": _plain(plan.logits_moment),
        "vocabulary": _plain(plan.vocabulary),
        "measured": {entry.name: entry.moment for entry in plan.measured},
        "expected_loss": _plain(plan.expected_loss),
        "stability": _stability_to_dict(plan.stability),
        "moments": [
            _plain(dataclasses.asdict(row) | {"place": row.place.name}) for row in plan.moments
        ],
    }


def plan_to_json(plan: Plan) -> str:
    """The plan as text; see ``Plan.to_json``."""
    return json.dumps(plan_to_dict(plan), indent=1, ensure_ascii=False)


def plan_from_json(text: str | bytes) -> Plan:
    """Read what ``plan_to_json`` wrote; see ``Plan.from_json``."""
    if not isinstance(text, str | bytes):
        raise TypeError(
            f"Plan.from_json takes the text that plan.to_json() returned, got a "
            f"{type(text).__name__}. Read a file first: Plan.from_json(path.read_text())."
        )
    try:
        data = json.loads(text)
    except ValueError as error:
        raise _no_plan(f"it is not JSON ({error})") from error
    version = data.get("version") if isinstance(data, dict) else None
    if not isinstance(version, int):
        raise _no_plan('it is not an object with a "version"')
    if version > VERSION:
        raise ValueError(
            f"Plan.from_json: this plan has format version {version}, but this anyinit reads "
            f"versions up to {VERSION}. A newer anyinit wrote it: upgrade anyinit-jax."
        )
    try:
        return Plan(
            weights=tuple(_weight(row) for row in data["weights"]),
            left_alone=tuple(
                LeftAlone(left["path"], Reason[left["kind"]]) for left in data["left_alone"]
            ),
            findings=tuple(
                Finding(Kind[found["kind"]], found["subject"], found["where"], found["detail"])
                for found in data["findings"]
            ),
            logits_moment=data["logits_moment"],
            vocabulary=data["vocabulary"],
            # Earlier texts of version 1 lack it.
            stability=_stability(data.get("stability")),
            # Texts of version 1 that were written before plans could be measured lack it.
            measured=tuple(
                MeasuredMoment(name, moment) for name, moment in data.get("measured", {}).items()
            ),
            moments=tuple(
                PlannedMoment(**{**row, "place": Place[row["place"]]})
                for row in data.get("moments", ())
            ),
        )
    except KeyError as error:
        raise _no_plan(f"{error} is missing or unknown") from error
    except (TypeError, AttributeError) as error:
        raise _no_plan(f"an entry has the wrong type ({error})") from error


def _weight(row: Mapping[str, Any]) -> WeightPlan:
    fields = {field.name: _hashable(row[field.name]) for field in dataclasses.fields(WeightPlan)}
    return WeightPlan(**fields)


def _stability_to_dict(stability: Stability | None) -> dict[str, Any] | None:
    if stability is None:
        return None
    return {
        "verdict": stability.verdict.value,
        "growth": _plain(stability.growth),
        "depth": stability.depth,
        "tenfold_depth": _plain(stability.tenfold_depth),
        "nonlinearities": [
            _plain(dataclasses.asdict(found)) | {"verdict": found.verdict.value}
            for found in stability.nonlinearities
        ],
    }


def _stability(data: Mapping[str, Any] | None) -> Stability | None:
    if data is None:
        return None
    names = [field.name for field in dataclasses.fields(Nonlinearity)]
    functions = (Nonlinearity(**{n: row[n] for n in names}) for row in data["nonlinearities"])
    return Stability(data["growth"], data["depth"], tuple(functions))


def _plain(value: Any) -> Any:
    """Without NumPy's scalars and tuples, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(entry) for entry in value]
    return value.item() if hasattr(value, "item") else value


def _hashable(value: Any) -> Any:
    return tuple(_hashable(entry) for entry in value) if isinstance(value, list) else value


def _no_plan(why: str) -> ValueError:
    return ValueError(
        f"Plan.from_json: this is not the text of a plan: {why}. Pass what plan.to_json() returned."
    )
