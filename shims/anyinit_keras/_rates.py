"""Learning rates times a number, as what an optimizer takes and a saved model keeps."""

from __future__ import annotations

import numbers
from typing import Any

import keras
from keras.optimizers.schedules import LearningRateSchedule


@keras.saving.register_keras_serializable(package="anyinit")
class Scaled(LearningRateSchedule):  # type: ignore[misc]
    """A schedule whose rates are a multiple of another one's.

    >>> half = Scaled(keras.optimizers.schedules.ExponentialDecay(1.0, 10, 0.5), 0.5)
    >>> float(half(0))
    0.5

    A saved model holds it by name: import ``anyinit.keras`` before ``keras.saving.load_model``.

    Arguments:
        schedule: the other schedule.
        multiplier: a positive number.
    """

    def __init__(self, schedule: LearningRateSchedule, multiplier: float) -> None:
        self.schedule = schedule
        self.multiplier = multiplier

    def __call__(self, step: Any) -> Any:
        """The rate at a step."""
        return self.multiplier * self.schedule(step)

    def get_config(self) -> dict[str, Any]:
        """What ``from_config`` needs."""
        schedule = keras.saving.serialize_keras_object(self.schedule)
        return {"schedule": schedule, "multiplier": self.multiplier}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Scaled:
        """The schedule that ``get_config`` described."""
        schedule = keras.saving.deserialize_keras_object(config["schedule"])
        return cls(schedule, config["multiplier"])


def check_rate(learning_rate: Any) -> None:
    """Refuse what is no learning rate.

    Arguments:
        learning_rate: what the caller passed.
    """
    number = isinstance(learning_rate, numbers.Real) and not isinstance(learning_rate, bool)
    if isinstance(learning_rate, LearningRateSchedule) or (number and float(learning_rate) >= 0):
        return
    raise ValueError(
        f"learning_rate={learning_rate!r} is no learning rate: expected a number that is not "
        "negative, or a keras.optimizers.schedules.LearningRateSchedule. A function cannot be "
        "saved with the model."
    )


def times(multiplier: float, learning_rate: Any) -> Any:
    """A learning rate times a number.

    Arguments:
        multiplier: the number.
        learning_rate: a number or a schedule.
    """
    if isinstance(learning_rate, LearningRateSchedule):
        if multiplier == 1.0:
            return learning_rate
        return Scaled(learning_rate, multiplier)
    return multiplier * float(learning_rate)
