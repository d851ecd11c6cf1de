"""Leaves out what needs a framework that is not installed, when doctests are collected."""

import importlib.util

collect_ignore_glob = [
    pattern
    for package in ("torch", "keras")
    if importlib.util.find_spec(package) is None
    for pattern in (
        f"anyinit/{package}.py",
        f"shims/anyinit_{package}/*.py",
        f"tests/{package}_*.py",
    )
]
