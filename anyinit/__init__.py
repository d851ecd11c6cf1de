"""Set the scale of every weight from what the model computes.

anyinit traces a model's forward pass, follows the second moment of the signal from the
input to the output, and multiplies every drawn weight by one positive number, so that what
the weight produces arrives where it is used with the second moment wanted there.

* :func:`anyinit.flax.init` takes the place of ``model.init``; :func:`anyinit.flax.plan` makes
  the plan alone, from shapes.
* :func:`anyinit.flax.measure` runs a model on a batch and compares it with its plan.
* :class:`Plan` is the result: it prints as a report, and :meth:`Plan.rescale` applies it.
* ``anyinit.nnx``, ``anyinit.torch`` and ``anyinit.keras`` are the same for Flax nnx, PyTorch and
  Keras; they are imported when they are first used.
* :func:`coordinate_check` trains several widths for a few steps and compares what moves.
* :func:`optax_partition` and :func:`optax_labels` give the learning rates that go with it.
"""

import importlib
from typing import TYPE_CHECKING, Any

from anyinit import flax as flax
from anyinit._apply.partition import optax_labels as optax_labels
from anyinit._apply.partition import optax_partition as optax_partition
from anyinit._apply.variables import Variables as Variables
from anyinit._depth.stability import Nonlinearity as Nonlinearity
from anyinit._depth.stability import Stability as Stability
from anyinit._depth.stability import StabilityVerdict as StabilityVerdict
from anyinit._findings import Finding as Finding
from anyinit._findings import Kind as Kind
from anyinit._findings import Reason as Reason
from anyinit._measure.check import Check as Check
from anyinit._measure.check import MeasuredRow as MeasuredRow
from anyinit._measure.check import UnhealthyError as UnhealthyError
from anyinit._measure.check import Verdict as Verdict
from anyinit._measure.coordinates import coordinate_check as coordinate_check
from anyinit._measure.coordinates_report import Coordinate as Coordinate
from anyinit._measure.coordinates_report import CoordinateCheck as CoordinateCheck
from anyinit._measure.site_values import SiteValues as SiteValues
from anyinit._plan.plan import LeftAlone as LeftAlone
from anyinit._plan.plan import MeasuredMoment as MeasuredMoment
from anyinit._plan.plan import Plan as Plan
from anyinit._plan.plan import PlannedMoment as PlannedMoment
from anyinit._plan.plan import WeightPlan as WeightPlan
from anyinit._plan.watched import Place as Place
from anyinit._version import __version__ as __version__

if TYPE_CHECKING:
    from anyinit import keras as keras
    from anyinit import nnx as nnx
    from anyinit import torch as torch

_ON_FIRST_USE = ("keras", "nnx", "torch")


def __getattr__(name: str) -> Any:
    if name in _ON_FIRST_USE:
        return importlib.import_module(f"anyinit.{name}")
    raise AttributeError(f"module 'anyinit' has no attribute {name!r}")
