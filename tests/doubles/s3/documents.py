"""Reading the XML documents that requests bring."""

from __future__ import annotations

from xml.etree.ElementTree import Element, ParseError

from defusedxml import DefusedXmlException, ElementTree

from tests.doubles.s3.errors import S3Error


def parse(document: bytes, name: str | None = None) -> Element:
    """The root element; where a name is given, it has to be that. Raises MalformedXML."""
    try:
        root: Element = ElementTree.fromstring(document)
    except (ParseError, DefusedXmlException, ValueError) as error:
        raise S3Error("MalformedXML") from error
    if name is not None and local_name(root) != name:
        raise S3Error("MalformedXML", f"The document is no {name}.")
    return root


def children(parent: Element, name: str) -> list[Element]:
    """The child elements of this name."""
    return [child for child in parent if local_name(child) == name]


def child_text(parent: Element, name: str, *, strip: bool = True) -> str:
    """The text of the first child of this name; nothing where there is none."""
    text = next((child.text or "" for child in children(parent, name)), "")
    return text.strip() if strip else text


def local_name(element: Element) -> str:
    """The element's name; S3 takes documents with its namespace and without."""
    return str(element.tag).rpartition("}")[2]
