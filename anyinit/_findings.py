"""What a report can say: every sentence of it, as enumerations."""

from __future__ import annotations

import dataclasses
import enum


class Reason(enum.Enum):
    """Why a parameter is left as it is."""

    CONSTANT = "It is constant (not drawn), so it keeps its values."
    BIAS = "It is drawn, but it is added to a signal as a bias; its moment is propagated."
    GAIN = "It multiplies the signal element by element (a gain); its moment is propagated."
    NONLINEAR = "It enters the model nonlinearly, so no single factor sets its scale."
    SCALE_FREE = "Its scale cancels in the model (it is normalized before it is used)."
    SIGNAL = "It is itself a signal (learned queries or latents), so it is left as drawn."
    ADDED_TABLE = "It is added to a computed signal as a table of positions; it is left as drawn."
    FROZEN = "It is frozen (it takes no gradient), so it keeps its values."
    SKIPPED = "It was excluded by the caller's `only=` or `skip=`."
    UNUSED = "It reaches no output of the model."
    SILENT = "The signal at its site is zero whatever its scale, so nothing can be asked of it."
    NOT_FLOAT = "Its dtype is not a real floating-point type."
    UNPLANNED = "No use of it could be analysed; see the findings."


class Kind(enum.Enum):
    """A kind of finding, with the full sentence that reports it.

    ``{subject}`` is the parameter or primitive, ``{detail}`` what was measured or assumed.
    """

    NO_RULE = (
        "The operation {subject} has no rule and could not be evaluated on samples: "
        "its output is assumed to keep the second moment of its input."
    )
    NORM_GAIN_BRANCH = (
        "A residual branch ends in a normalization ({subject}), so its share of the stream is set "
        "by the norm's gain and cannot be set by a weight."
    )
    OPAQUE_SIGNAL = (
        "An integer input is used as a number by {subject}: it is assumed to have second moment 1."
    )
    SHIFTED_INPUT = (
        "{subject} is shifted by a constant before its first weight, and counted as drawn around "
        "zero: the constant is then {detail} of what enters. If the shift centres the data, "
        'initialize with mode="empirical", or centre them before the model.'
    )
    UNSETTLED = "The scales did not settle ({detail}); the last iterate is reported."
    DISAGREEING_SITES = (
        "{subject} is used in several places that ask for different standard deviations "
        "({detail}); their geometric mean is planned, so none of them gets exactly its target."
    )
    WEIGHT_PRODUCT = (
        "{subject} is used through a product of weights ({detail}), which is planned as one "
        "weight: its factors share what the product is asked for."
    )
    ROUTE = (
        "The model's forward pass depends on values ({detail}), so it was run once with real "
        "values to record it."
    )
    NO_VALUES = (
        "There are no values (meta device) of {subject}: one-dimensional parameters are taken for "
        "constants, all others for drawn."
    )
    SPLIT_TIE = (
        "{subject} and {detail} are declared tied, but their tensors are stored apart: they are "
        "treated as two parameters."
    )
    NO_FLOAT_OUTPUT = (
        "No output of the {subject} is a floating-point array, so there are no logits to scale: "
        "weights that only reach integers are planned from the sites inside."
    )
    RECURRENT = (
        "{subject} feeds back into itself in a loop, so it is not scaled above 1/√fan_in, which "
        "leaves less at its site than the target."
    )
    DRAWN_WITH_MEAN = (
        "{subject} is drawn with a mean of {detail} of its scale, so its products add up to more "
        "than planned wherever their input has a mean: draw it with mean zero."
    )
    LOOP_CAPPED = "The loop at {subject} did not settle within {detail} steps."
    UNSTABLE = (
        "Errors in the signal's scale grow through {subject}: by a factor of {detail} without a "
        "normalization. Put a normalization between the layers, or take a function that is linear "
        "for large inputs."
    )
    NOTHING_MEASURED = (
        "{subject} delivers only zeros on this batch, so its scale is the one planned without "
        "measuring: pass a batch on which this part of the model is active."
    )
    ONE_EXAMPLE = (
        "The batch holds one example, so what was measured holds for that example: pass a batch "
        "of 8 or more."
    )
    INPUT_MOMENT = (
        "The {subject} has another second moment on this batch than the plan counts on ({detail}): "
        "normalize it, or pass input_moment=."
    )
    LOOP_MEASURED = (
        "The loop at {subject} was measured on its first {detail} steps, of which the last stands "
        "for those that follow: outputs computed from all steps were not measured as such."
    )


@dataclasses.dataclass(frozen=True)
class Finding:
    """One sentence of the report about something assumed, refused or unusual.

    Arguments:
        kind: which sentence.
        subject: the parameter path or primitive name it is about.
        where: ``file.py:line`` of the model's source, or an empty string.
        detail: what fills the sentence's blank.
    """

    kind: Kind
    subject: str
    where: str = ""
    detail: str = ""

    @property
    def message(self) -> str:
        """The full sentence."""
        return self.kind.value.format(subject=self.subject, detail=self.detail)
