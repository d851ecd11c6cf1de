"""The result of an analysis: one row a weight, and what was left alone."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from anyinit._depth.stability import Stability
from anyinit._findings import Finding, Reason

if TYPE_CHECKING:
    from anyinit._measure.check import Check
    from anyinit._plan.watched import Place


@dataclasses.dataclass(frozen=True)
class WeightPlan:
    """What is planned for one drawn weight, and why.

    Arguments:
        path: the framework's name of the leaf (Flax: joined by ``/`` without the collection).
        shape: shape of the leaf.
        dtype: dtype name of the leaf.
        roles: what the model does with it: ``"lookup"``, ``"readout"`` or ``"kernel"``;
            a tied table has ``("lookup", "readout")``.
        site: what acts at the site, as words (``"output"``, ``"nonlinearity"`` …).
        where: ``file.py:line`` of the site.
        fan: number of elements that the weight's product sums over (1 for a lookup).
        moment_in: second moment of what is multiplied with the weight, without the constants
            that ``c`` counts.
        c: constant factor counted on the weight's way to its site.
        target: second moment wanted at the site from this weight.
        at_most: whether the prediction is an upper bound (fed by an attention average).
        std_before: standard deviation with which the initializer draws it, if known.
        sigma: planned standard deviation; one number a layer for a stacked leaf.
        m: multiplier of the learning rate, 1 / c.
        aliases: other names of the same storage (a tie declared by two names).
        arrival: for a table that is looked up, second moment on arrival; else ``None``.
        own_token_logit: for a tied table, expected logit of the token that was looked up.
        layer_axes: axes of a stacked leaf that count its layers, in the order of ``sigma``.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    roles: tuple[str, ...]
    site: str
    where: str
    fan: int
    moment_in: float
    c: float
    target: float
    at_most: bool
    std_before: float | tuple[float, ...] | None
    sigma: float | tuple[float, ...]
    m: float
    aliases: tuple[str, ...] = ()
    arrival: float | None = None
    own_token_logit: float | None = None
    layer_axes: tuple[int, ...] = ()

    @property
    def is_tied(self) -> bool:
        """Whether the weight is both looked up and read as the output layer."""
        return {"lookup", "readout"} <= set(self.roles)


@dataclasses.dataclass(frozen=True)
class LeftAlone:
    """A parameter that keeps its values, and the reason."""

    path: str
    reason: Reason


@dataclasses.dataclass(frozen=True)
class MeasuredMoment:
    """The second moment of a place of the model, as measured on a batch.

    Arguments:
        name: the weight's path, what kind of place it is, and which of them.
        moment: second moment with every scale as planned.
    """

    name: str
    moment: float


@dataclasses.dataclass(frozen=True)
class PlannedMoment:
    """The second moment that a plan predicts at one place of the model.

    Arguments:
        path: the weight whose site it is, ``"output"``, or the weights added to a stream.
        place: what kind of place it is.
        site: what acts there.
        where: ``file.py:line`` of it.
        moment: second moment E[x²].
        at_most: whether that is an upper bound (fed by an attention average).
        number: which of the places with this path and place.
    """

    path: str
    place: Place
    site: str
    where: str
    moment: float
    at_most: bool
    number: int = 0

    @property
    def name(self) -> str:
        """What identifies the place, as in ``MeasuredMoment``."""
        return f"{self.path} | {self.place.name} | {self.number}"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """The planned scale of every weight, hashable and comparable.

    >>> plan = Plan(weights=(), left_alone=(LeftAlone("bias", Reason.CONSTANT),))
    >>> plan, Plan.from_json(plan.to_json()) == plan
    (Plan(0 weights, 1 left alone, 0 findings), True)

    ``print(plan)`` shows the report.

    Arguments:
        weights: one row a planned weight, in the order in which the model uses them.
        left_alone: every other parameter, with its reason.
        findings: what was assumed or is unusual.
        logits_moment: predicted second moment of the (first) logits output, if there is one.
        vocabulary: width of the logits that the softmax sees, if there is a logits output.
        stability: how an error in the signal's scale grows over depth; ``None`` for a network
            without a nonlinearity.
        measured: with ``mode="empirical"``, what was measured at each place of the model.
        moments: what the analysis predicts at each place, in the order of computation.
    """

    weights: tuple[WeightPlan, ...]
    left_alone: tuple[LeftAlone, ...] = ()
    findings: tuple[Finding, ...] = ()
    logits_moment: float | None = None
    vocabulary: int | None = None
    stability: Stability | None = None
    measured: tuple[MeasuredMoment, ...] = ()
    moments: tuple[PlannedMoment, ...] = ()

    # The methods below import where they are called: those modules need the classes above.

    def rescale(self, params: Any) -> Any:
        """Give every planned weight the standard deviation that the plan asks for.

        A pure function that can be jitted: each planned leaf is multiplied by sigma / rms(leaf),
        every other leaf is returned as the object that was passed.

        >>> import numpy as np
        >>> row = WeightPlan(
        ...     path="kernel", shape=(2, 2), dtype="float32", roles=("kernel",), site="output",
        ...     where="", fan=2, moment_in=1.0, c=1.0, target=1.0, at_most=False,
        ...     std_before=None, sigma=0.5, m=1.0,
        ... )
        >>> Plan(weights=(row,)).rescale({"kernel": np.float32([[3, -3], [3, 3]])})
        {'kernel': Array([[ 0.5, -0.5], [ 0.5,  0.5]], dtype=float32)}

        Arguments:
            params: the whole variables or the inner ``params``, in any container.

        Returns:
            The same tree, container types and dtypes included.

        Raises:
            ValueError: the parameters belong to another model; the message names those missing,
                those unexpected and the shapes that differ.
        """
        from anyinit._apply.rescale import rescale

        return rescale(self, params)

    def explain(self, name: str) -> str:
        """Say what decided the scale of one weight, or why a parameter was left alone.

        >>> row = WeightPlan(
        ...     path="kernel", shape=(64, 32), dtype="float32", roles=("kernel",),
        ...     site="nonlinearity", where="model.py:7", fan=64, moment_in=0.5, c=1.0, target=1.0,
        ...     at_most=False, std_before=None, sigma=0.1767767, m=1.0,
        ... )
        >>> print(Plan(weights=(row,)).explain("kernel"))
        kernel  64×32  kernel
          site      nonlinearity  model.py:7
          target    1         second moment wanted there
          fan       64        elements that an entry of its product sums over
          E[x²] in  0.5       second moment of what enters
          c         1         constant factors on the way
          m         1         1/c, its multiple of the learning rate
          std       0.177     √(target / (fan · E[x²])) / c

        Arguments:
            name: the parameter's path as the framework has it, or an alias of it.

        Returns:
            Text to print: the numbers behind the planned standard deviation with what each of them
            is, and the findings about the weight.

        Raises:
            KeyError: the plan knows no such parameter; the message names those that look like it.
        """
        from anyinit._report.explain import explanation

        return explanation(self, name)

    def to_dict(self) -> dict[str, Any]:
        """The plan as dictionaries, lists, strings and numbers, complete.

        >>> sorted(Plan(weights=()).to_dict())
        ['expected_loss', 'findings', 'left_alone', 'logits_moment', 'measured', 'moments',
         'stability', 'version', 'vocabulary', 'weights']

        Returns:
            Keys as shown. A weight has the fields of ``WeightPlan``; what was left alone its
            ``path`` and ``reason``; a finding its ``kind``, ``message`` and ``where``.
        """
        from anyinit._report.json import plan_to_dict

        return plan_to_dict(self)

    def to_json(self) -> str:
        """The plan as JSON text, to keep beside a checkpoint.

        >>> Plan(weights=()).to_json().splitlines()[1]
        ' "version": 1,'

        Returns:
            Text that ``Plan.from_json`` reads back exactly, floats included.
        """
        from anyinit._report.json import plan_to_json

        return plan_to_json(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """Read a plan that ``to_json`` wrote.

        >>> Plan.from_json(Plan(weights=(), vocabulary=100).to_json()).vocabulary
        100

        Arguments:
            text: what ``to_json`` returned.

        Returns:
            A plan equal to the one that was written.

        Raises:
            ValueError: the text is no plan, or a newer anyinit wrote it.
            TypeError: ``text`` is no text.
        """
        from anyinit._report.json import plan_from_json

        return plan_from_json(text)

    def plot(self, check: Check | None = None) -> Any:
        """Draw second moment against depth: streams, their branches, and all other sites.

        >>> figure = Plan(weights=()).plot()
        >>> figure.savefig("plan.png")  # doctest: +SKIP

        Arguments:
            check: what ``measure`` returned for the same model, to draw beside the prediction.

        Returns:
            A ``matplotlib.figure.Figure``, which a notebook shows and ``savefig`` saves.

        Raises:
            ImportError: matplotlib is not installed.
        """
        from anyinit._report.figures import plan_figure

        return plan_figure(self, check)

    @property
    def expected_loss(self) -> float | None:
        """Cross-entropy to expect before training, in nats.

        ln V + E[logits²] / 2, exact for normal logits that do not know the target; the logit of
        the token that a tied table looked up adds its own exponential to the sum under the
        logarithm. ``None`` without logits of two classes or more.

        >>> round(Plan(weights=(), logits_moment=1.0, vocabulary=50_257).expected_loss, 2)
        11.32
        """
        if self.logits_moment is None or self.vocabulary is None or self.vocabulary < 2:
            return None
        others = math.log(self.vocabulary) + self.logits_moment / 2
        own = [row.own_token_logit for row in self.weights if row.own_token_logit is not None]
        return float(np.logaddexp.reduce([others, *own]))

    @functools.cached_property
    def weight_by_name(self) -> dict[str, WeightPlan]:
        """Every planned weight by its path and by each of its aliases."""
        return {name: row for row in self.weights for name in (row.path, *row.aliases)}

    @functools.cached_property
    def known_names(self) -> frozenset[str]:
        """Names of all parameters of the model, planned and left alone."""
        return frozenset(self.weight_by_name) | {left.path for left in self.left_alone}

    def __str__(self) -> str:
        from anyinit._report.render import to_text
        from anyinit._report.report import report_of

        return to_text(report_of(self))

    def _repr_html_(self) -> str:
        from anyinit._report.render import to_html
        from anyinit._report.report import report_of

        return to_html(report_of(self))

    def __repr__(self) -> str:
        # Short, since JAX prints it in every message about a treedef.
        counts = f"{len(self.weights)} weights, {len(self.left_alone)} left alone"
        return f"Plan({counts}, {len(self.findings)} findings)"

    # A plan is part of a treedef, which jax.jit compares at every call.

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Plan):
            return NotImplemented
        return self._hash == other._hash and self._fields() == other._fields()

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return hash(self._fields())

    def _fields(self) -> tuple[object, ...]:
        return tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    def __reduce__(self) -> tuple[type[Plan], tuple[object, ...]]:
        # Without what is cached: hashes of strings differ from process to process.
        return Plan, self._fields()

    def __deepcopy__(self, memo: object) -> Plan:
        return self
