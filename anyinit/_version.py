"""The version, read by the package and by the build alike."""

__version__ = "0.1.0"
