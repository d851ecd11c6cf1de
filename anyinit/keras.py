"""anyinit for Keras; importing this module imports keras."""

from anyinit_keras import init as init
from anyinit_keras import measure as measure
from anyinit_keras import optimizer as optimizer
from anyinit_keras import plan as plan
