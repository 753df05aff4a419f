"""Write the bill of materials of a root file system to standard output, as CycloneDX in JSON.

Usage: ``sbom.py ROOT``. It lists the Python packages below ``ROOT/opt/gateway`` and the Debian packages in
``ROOT/var/lib/dpkg/status.d``. The same root gives the same bytes.
"""

import json
import re
import sys
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import NAMESPACE_URL, uuid5

OURS = "fencing-gateway"
SPDX = {"Apache-2.0", "BSD-3-Clause", "MIT", "MPL-2.0", "PSF-2.0"}
"""Names of SPDX that packages have in the older field ``License``, which may also hold any other text."""

Component = dict[str, Any]


def document(root: Path) -> dict[str, Any]:
    """Return the whole document."""
    python = [python_component(one) for one in sorted(installed(root), key=lambda one: one.name.lower())]
    ours = next(one for one in python if one["name"] == OURS)
    components = [*(one for one in python if one is not ours), *debian_components(root)]
    serial = uuid5(NAMESPACE_URL, json.dumps([ours, components], sort_keys=True))
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {"component": {**ours, "type": "application"}},
        "components": components,
    }


def installed(root: Path) -> list[Distribution]:
    """Return the Python packages of the root."""
    return list(distributions(path=[str(path) for path in root.glob("opt/gateway/lib/python3*/site-packages")]))


def python_component(one: Distribution) -> Component:
    """Return a Python package as a component."""
    name = one.name.lower().replace("_", "-").replace(".", "-")
    purl = f"pkg:pypi/{name}@{quote(one.version)}"
    component = {"type": "library", "bom-ref": purl, "name": name, "version": one.version, "purl": purl}
    stated = licences(one.metadata)
    return {**component, "licenses": stated} if stated else component


def licences(metadata: Message) -> list[dict[str, Any]]:
    """Return the licence of a package as CycloneDX writes it: by SPDX, or else by name. Empty if it states none.

    ``make release`` calls this, too. An image build has the standard library alone.
    """
    expression, text = metadata.get("License-Expression"), metadata.get("License", "").strip()
    if expression or set(re.split(" (?:AND|OR) ", text)) <= SPDX:
        return [{"expression": expression or text}]
    classifiers = metadata.get_all("Classifier", [])
    classified = [line.rpartition(" :: ")[2] for line in classifiers if line.startswith("License ::")]
    names = classified or ([text] if text and "\n" not in text else [])
    return [{"license": {"name": name}} for name in names]


def debian_components(root: Path) -> Iterator[Component]:
    """Return the Debian packages of the root, with the digest of the file that each came from."""
    release = dict(line.split("=", 1) for line in (root / "usr/lib/os-release").read_text().splitlines() if "=" in line)
    distribution = f"debian-{release['VERSION_ID'].strip(chr(34))}"
    for path in sorted((root / "var/lib/dpkg/status.d").iterdir()):
        if path.suffix == ".sha256":
            continue
        fields: Message = Parser().parsestr(path.read_text())
        name, version, architecture = fields["Package"], fields["Version"], fields["Architecture"]
        purl = f"pkg:deb/debian/{quote(name)}@{quote(version, safe='')}?arch={architecture}&distro={distribution}"
        component = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
        digest = path.with_name(f"{path.name}.sha256")
        if digest.exists():
            component["hashes"] = [{"alg": "SHA-256", "content": digest.read_text().strip()}]  # type: ignore[assignment]
        yield component


if __name__ == "__main__":
    json.dump(document(Path(sys.argv[1])), sys.stdout, indent=1, sort_keys=True)
    sys.stdout.write("\n")
