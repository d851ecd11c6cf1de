"""The package as installed: what it imports, its version, and its types."""

import importlib.metadata
import pathlib
import subprocess
import sys
import textwrap

import pytest

import anyinit

HERE = pathlib.Path(__file__).parent


def test_import_asks_for_no_optional_package() -> None:
    code = textwrap.dedent(
        """
        import sys
        import jax, flax, optax, rich

        class Watch:
            def find_spec(self, name, path=None, target=None):
                if name in ("torch", "keras", "tensorflow", "matplotlib", "tokenizers"):
                    print("asked for", name)

        sys.meta_path.insert(0, Watch())
        import anyinit
        """
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_import_starts_no_backend() -> None:
    code = "import anyinit, jax; print(jax._src.xla_bridge.backends_are_initialized())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stderr


def test_version_is_that_of_the_distribution() -> None:
    assert anyinit.__version__ == importlib.metadata.version("anyinit-jax")


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("mypy", "--strict", "user_file.py"),
        ("pyright", "--pythonpath", sys.executable, "--project", "."),
    ],
    ids=lambda command: command[0],
)
def test_user_file_is_clean_in_strict_mode(
    command: tuple[str, ...], tmp_path: pathlib.Path
) -> None:
    """From outside the checkout, so that the installed package's types are what is read."""
    pytest.importorskip(command[0], reason=f"{command[0]} is not installed")
    (tmp_path / "user_file.py").write_text((HERE / "user_file.py").read_text())
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
