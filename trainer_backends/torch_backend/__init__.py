"""Training in this process with torch: generation, update, checkpoints."""

from importlib.util import find_spec

from ...errors import MissingExtra


def check_packages(*names: str) -> None:
    """Check that packages are installed, before something is begun that needs them.

    Raises:
        MissingExtra: one is not.
    """
    for name in names:
        if find_spec(name) is None:
            raise MissingExtra(f"The torch backend needs {name}.", hint='Run: pip install "turngym[torch]"')
