"""Software bills of materials: CycloneDX documents of what an artefact has in it. The only importer
of cyclonedx."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import Message

from cyclonedx.factory.license import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

_LICENSE_NAME_MAX = 60  # characters; what is longer is the text of the license
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://cyclonedx.org/lodefs")


@dataclass(frozen=True, order=True)
class Ingredient:
    """A package of others in an artefact. ``kind``: "pypi" or "deb"; ``license``: as the package
    says it, or empty."""

    kind: str
    name: str
    version: str
    license: str = ""


def ingredient_of(metadata: Message) -> Ingredient:
    """A Python package, by its METADATA."""
    short = (metadata["License"] or "").strip().partition("\n")[0]
    classes = [
        str(one).rpartition(" :: ")[2]
        for one in metadata.get_all("Classifier", [])
        if str(one).startswith("License ::")
    ]
    said = metadata["License-Expression"] or (short if len(short) <= _LICENSE_NAME_MAX else "")
    name = str(metadata["Name"]).lower().replace("_", "-")
    return Ingredient("pypi", name, str(metadata["Version"]), str(said or ", ".join(classes)))


def describe(artefact: str, version: str, ingredients: Iterable[Ingredient], time_s: int) -> str:
    """The document of one artefact, as JSON. Equal arguments give equal bytes.

    Args:
        artefact: its file name.
        version: of lodefs.
        time_s: when it was built, in seconds since 1970.
    """
    licenses = LicenseFactory()
    bom = Bom(serial_number=uuid.uuid5(_NAMESPACE, f"{artefact} {version} {time_s}"))
    bom.metadata.timestamp = datetime.fromtimestamp(time_s, UTC)
    own = licenses.make_from_string("Apache-2.0")
    bom.metadata.component = Component(
        name="lodefs",
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref=f"lodefs@{version}",
        licenses=[own],
        description=artefact,
    )
    for one in sorted(set(ingredients)):
        url = PackageURL(one.kind, "debian" if one.kind == "deb" else None, one.name, one.version)
        component = Component(
            name=one.name,
            version=one.version,
            type=ComponentType.LIBRARY,
            bom_ref=url.to_string(),
            purl=url,
            licenses=[licenses.make_from_string(one.license)] if one.license else [],
        )
        bom.components.add(component)
        bom.register_dependency(bom.metadata.component, [component])
    return str(JsonV1Dot6(bom).output_as_string(indent=2)) + "\n"
