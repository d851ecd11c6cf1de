"""The names of a model's variables: their paths, each variable once."""

from __future__ import annotations

import collections

import keras


def named_variables(model: keras.Layer) -> dict[str, keras.Variable]:
    """Every variable of a model by its name, seed states included.

    A name is ``variable.path``. Where several variables have one path, as layers of one name that
    are built outside their parent do, the second one's name is ``path (2)``.

    Arguments:
        model: a built model.
    """
    seen: collections.Counter[str] = collections.Counter()
    named = {}
    for variable in {id(variable): variable for variable in model.variables}.values():
        seen[variable.path] += 1
        number = seen[variable.path]
        named[variable.path if number == 1 else f"{variable.path} ({number})"] = variable
    return named


def seed_states(model: keras.Layer) -> set[int]:
    """Identities of the variables that hold the states of random number generators.

    Arguments:
        model: a built model.
    """
    weights = {id(variable) for variable in model.weights}
    return {id(variable) for variable in model.variables} - weights
