"""The packages of the server, as the metadata of the installed package lists them."""

import re
from importlib.metadata import PackageNotFoundError, distribution, requires

_EXTRA = re.compile(r"""extra\s*==\s*['"]server['"]""")
_NAME = re.compile(r"[\w.-]+")


def missing_server_packages() -> list[str]:
    """Return the packages of the extra ``server`` that are not installed."""
    return [name for name in _server_packages() if not _is_installed(name)]


def _server_packages() -> list[str]:
    found = [(_NAME.match(line), line) for line in requires("fencing-gateway") or () if _EXTRA.search(line)]
    return [name[0] for name, _ in found if name]


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
