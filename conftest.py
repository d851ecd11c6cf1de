"""Chooses the Keras backend, and leaves out what needs a framework that is not installed."""

import importlib.util
import os

os.environ.setdefault("KERAS_BACKEND", "jax")

collect_ignore_glob = [
    pattern
    for package in ("torch", "keras", "keras_hub")
    if importlib.util.find_spec(package) is None
    for pattern in (
        f"anyinit/{package}.py",
        f"shims/anyinit_{package}/*.py",
        f"tests/{package}_*.py",
    )
]

# Each of these imports the framework of its backend; TensorFlow only where it is the backend.
if importlib.util.find_spec("torch") is None:
    collect_ignore_glob.append("shims/anyinit_keras/_on_torch.py")
if os.environ["KERAS_BACKEND"] != "tensorflow":
    collect_ignore_glob += [
        "shims/anyinit_keras/_on_tensorflow.py",
        "shims/anyinit_tensorflow/*.py",
    ]
