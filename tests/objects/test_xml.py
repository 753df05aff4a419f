"""Documents of S3: those of clients and stores are read strictly, and those of the gateway are always well-formed."""

from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import StoreError, TokenStale, Unavailable
from gateway.objects.s3 import xml
from gateway.objects.s3.xml import ErrorDocument, ObjectToDelete, Part

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


ETAG = "0123456789abcdef0123456789abcdef"


DELETE = "<Delete><Object><Key>k</Key></Object></Delete>"


COMPLETION = (
    f"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{ETAG}</ETag></Part></CompleteMultipartUpload>"
)


READERS = [(xml.deletion, DELETE), (xml.completion, COMPLETION)]


both = pytest.mark.parametrize(("read", "document"), READERS, ids=["deletion", "completion"])


def code(read: Any, document: str | bytes) -> str:
    """The error that a document is refused with."""
    with pytest.raises(StoreError) as caught:
        read(document.encode() if isinstance(document, str) else document)
    assert caught.value.status == (501 if caught.value.s3_code == "NotImplemented" else 400)
    return caught.value.s3_code


def deletion(*objects: str, more: str = "") -> tuple[tuple[ObjectToDelete, ...], bool]:
    return xml.deletion(f"<Delete>{''.join(f'<Object>{each}</Object>' for each in objects)}{more}</Delete>".encode())


def parts(*listed: str) -> str:
    written = "".join(f"<Part>{each}</Part>" for each in listed)
    return f"<CompleteMultipartUpload>{written}</CompleteMultipartUpload>"


def part(number: object, etag: str = ETAG, more: str = "") -> str:
    return f"<PartNumber>{number}</PartNumber><ETag>{etag}</ETag>{more}"


BILLION = "".join(f'<!ENTITY a{n + 1} "{f"&a{n};" * 10}">' for n in range(9))


HOSTILE: dict[str, Callable[[str], str | bytes]] = {
    "no XML": lambda text: text.removeprefix("<"),
    "empty": lambda _: "",
    "cut off": lambda text: text[:-1],
    "two roots": lambda text: text + text,
    "wrong root": lambda text: f"<a>{text}</a>",
    "wrong case": str.lower,
    "no UTF-8": lambda text: text.encode().replace(b"</", b"\xff</", 1),
    "NUL as a reference": lambda text: text.replace("</", "&#0;</", 1),
    "unknown entity": lambda text: text.replace("</", "&who;</", 1),
    "no encoding": lambda text: f'<?xml version="1.0" encoding="rot13"?>{text}',
    "wide encoding": lambda text: f'<?xml version="1.0" encoding="utf-32"?>{text}',
    "nothing within": lambda text: f"{text.partition('>')[0]}/>",
}


@both
@pytest.mark.parametrize("name", HOSTILE)
def test_other_documents_are_refused(read: Any, document: str, name: str) -> None:
    assert read(document.encode())
    assert code(read, HOSTILE[name](document)) == "MalformedXML"


@both
@pytest.mark.parametrize(
    "declared",
    [
        '<!DOCTYPE Delete SYSTEM "http://127.0.0.1:1/x.dtd">',
        '<!DOCTYPE Delete [<!ENTITY a SYSTEM "file:///etc/passwd">]>',
        '<!DOCTYPE Delete [<!ENTITY % a SYSTEM "http://127.0.0.1:1/"> %a;]>',
        f'<!DOCTYPE Delete [<!ENTITY a0 "ha">{BILLION}]>',
    ],
)
def test_a_document_that_declares_a_type(read: Any, document: str, declared: str) -> None:
    """Nothing of it is ever looked at, used or not."""
    assert read(document.encode())
    assert code(read, declared + document) == "MalformedXML"


@both
@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace(">", f' xmlns="{NAMESPACE}">', 1),
        lambda text: text.replace(">", ' xmlns="urn:other">', 1),
        lambda text: text.replace("<", "<a:").replace("<a:/", "</a:").replace(">", f' xmlns:a="{NAMESPACE}">', 1),
        lambda text: '<?xml version="1.0" encoding="UTF-8"?>\n' + text,
        lambda text: f"\n {text} \n",
        lambda text: text.replace("><", ">\n  <!-- between --><"),
        lambda text: text.replace("><", "><?what ever?><"),
    ],
    ids=["namespace", "another", "prefix", "declaration", "around", "between", "instructions"],
)
def test_namespaces_and_white_space_make_no_difference(read: Any, document: str, change: Any) -> None:
    assert read(change(document).encode()) == read(document.encode())


@both
def test_elements_within_elements(read: Any, document: str) -> None:
    """Nothing goes down into what a client nests as deep as it likes."""
    deep = "<a>" * 11_000 + "</a>" * 11_000
    assert read(document.replace("</", f"{deep}</", 1).encode()) == read(document.encode())


def test_any_encoding_that_is_declared() -> None:
    text = '<?xml version="1.0" encoding="ISO-8859-1"?><Delete><Object><Key>ä</Key></Object></Delete>'
    assert xml.deletion(text.encode("latin-1"))[0] == (ObjectToDelete("ä"),)


class TestDeletion:
    def test_all_there_is(self) -> None:
        read = deletion(
            "<Key>z</Key>",
            "<Key>a</Key>",
            "<Key>a</Key>",
            "<Key>b</Key><VersionId>v</VersionId>",
            f'<ETag>"{ETAG}"</ETag><Key>c</Key>',
            "<Key>d</Key><VersionId></VersionId><ETag/>",
        )
        entries = (
            *(ObjectToDelete(key) for key in "zaa"),
            ObjectToDelete("b", "v"),
            ObjectToDelete("c", None, f'"{ETAG}"'),
            ObjectToDelete("d"),
        )
        assert read == (entries, False)

    @pytest.mark.parametrize(
        ("written", "key"),
        [
            (" a ", " a "),
            (" ", " "),
            ("\n\ta", "\n\ta"),
            ("a&#13;b", "a\rb"),
            ("&lt;&amp;&gt;", "<&>"),
            ("<![CDATA[<&>]]>", "<&>"),
            ("&#x1F600;ä", "😀ä"),
            ("a/../b//", "a/../b//"),
        ],
    )
    def test_keys_are_taken_as_they_are(self, written: str, key: str) -> None:
        """White space belongs to a key. Deleting ``a`` for `` a `` would delete an object that no client named."""
        assert deletion(f"<Key>{written}</Key>")[0] == (ObjectToDelete(key),)

    def test_a_thousand_and_no_more(self) -> None:
        thousand = ["<Key>k</Key>"] * 1000
        assert len(deletion(*thousand)[0]) == 1000
        for wrong in ([*thousand, "<Key>k</Key>"], []):
            with pytest.raises(StoreError) as raised:
                deletion(*wrong)
            assert (raised.value.s3_code, "1 to 1000" in str(raised.value.facts["reason"])) == ("MalformedXML", True)

    @pytest.mark.parametrize(
        "written",
        [
            "",
            "<Key/>",
            "<Key>a</Key><Key>b</Key>",
            "<Key>a</Key><Key/>",
            "<Key>a</Key><VersionId>v</VersionId><VersionId>w</VersionId>",
            f"<Key>a</Key><ETag>{ETAG}</ETag><ETag>{ETAG}</ETag>",
            "<Key>a</Key></Object><Quiet>true</Quiet><Quiet>false</Quiet><Object><Key>b</Key>",
        ],
    )
    def test_an_object_without_a_key_is_refused(self, written: str) -> None:
        """Of two keys either may be meant: none is deleted."""
        assert code(xml.deletion, f"<Delete><Object>{written}</Object></Delete>") == "MalformedXML"

    @pytest.mark.parametrize("name", ["LastModifiedTime", "Size"])
    def test_conditions_that_are_not_evaluated_are_refused(self, name: str) -> None:
        written = f"<Delete><Object><Key>k</Key><{name}>1</{name}></Object></Delete>"
        assert code(xml.deletion, written) == "NotImplemented"


class TestCompletion:
    def test_all_there_is(self) -> None:
        checksums = "<ChecksumCRC32>AAAAAA==</ChecksumCRC32><ChecksumSHA256> x </ChecksumSHA256>"
        document = parts(part(1), part(7, f'"{ETAG}"', checksums), part(" 10000 ", f"\n&quot;{ETAG}&quot; "))
        assert xml.completion(document.encode()) == (
            Part(1, ETAG),
            Part(7, ETAG, (("ChecksumCRC32", "AAAAAA=="), ("ChecksumSHA256", "x"))),
            Part(10_000, ETAG),
        )

    def test_ten_thousand_and_no_more(self) -> None:
        listed = [part(1)] * 10_001
        assert code(xml.completion, parts(*listed)) == "MalformedXML"

    @pytest.mark.parametrize("number", ["0", "10001", "-1", "+1", "1.0", "0x1", "1e1", "١", "²", "1 1", "9" * 5000])
    def test_a_number_that_no_part_has(self, number: str) -> None:
        assert code(xml.completion, parts(part(number))) == "InvalidArgument"

    @pytest.mark.parametrize("etag", ["", " ", '""', '"', 'a"b', '""a""', '"a", "b"'])
    def test_an_invalid_etag_of_a_part_is_refused(self, etag: str) -> None:
        assert code(xml.completion, parts(part(1, etag))) == "MalformedXML"

    @pytest.mark.parametrize(
        ("written", "refusal"),
        [
            (f"<PartNumber>1</PartNumber>{part(1)}", "MalformedXML"),
            (f"{part(1)}<ETag>{ETAG}</ETag>", "MalformedXML"),
            ("<PartNumber>1</PartNumber>", "MalformedXML"),
            (f"<ETag>{ETAG}</ETag>", "MalformedXML"),
            (f"<PartNumber/><ETag>{ETAG}</ETag>", "MalformedXML"),
        ],
    )
    def test_a_part_with_a_repeated_or_missing_element_is_refused(self, written: str, refusal: str) -> None:
        assert code(xml.completion, parts(written)) == refusal


class TestAnswers:
    @given(st.text(max_size=30))
    def test_whatever_the_key_the_answer_is_well_formed_and_names_it(self, key: str) -> None:
        answers = [
            xml.initiated("b", key, key),
            xml.completed(key, key, key, key),
            xml.posted(key, key, key, key),
            xml.copied(key, key),
            xml.deleted([(ObjectToDelete(key, key), {"DeleteMarkerVersionId": key})], quiet=False),
            xml.deleted([(ObjectToDelete(key), StoreError("Code", 400, key))], quiet=False),
            xml.render(StoreError("Code", 400, key), path=key, request_id="r"),
        ]
        for answer in answers:
            assert len(ET.fromstring(answer)) >= 1
        if all(one.isprintable() or one in "\r\n\t" for one in key):
            assert ET.fromstring(answers[0]).findtext(f"{{{NAMESPACE}}}Key") == key


@both
def test_a_document_has_a_limit_of_tags(read: Any, document: str) -> None:
    filling = "<a/>" * 300_000
    with pytest.raises(StoreError) as caught:
        read(document.replace("</", f"{filling}</", 1).encode())
    assert caught.value.s3_code == "MalformedXML"


# Errors reach S3 clients in S3's form, and the store's errors are read without trusting it.


def test_a_refusal_has_advice_and_facts() -> None:
    facts: dict[str, Any] = {"fencing_token": "41", "raised-by": "w<2>", "enforced": True, "holder": None, "Code": "x"}
    error = TokenStale("Token 41 is stale.", facts=facts)
    root = ET.fromstring(xml.render(error, path="/b/a&b", request_id="r1"))
    assert root.tag == "Error"
    assert {child.tag: child.text for child in root} == {
        "Code": "StaleFencingToken",
        "Message": f"Token 41 is stale. {error.advice}",
        "Resource": "/b/a&b",
        "RequestId": "r1",
        "FencingToken": "41",
        "RaisedBy": "w<2>",
        "Enforced": "true",
    }


def test_control_characters_are_made_harmless() -> None:
    root = ET.fromstring(xml.render(StoreError("C", 400, "a\0\x1b\ud800\uffffb\r"), path="/", request_id="r"))
    assert root.findtext("Message") == "a\ufffd\ufffd\ufffd\ufffdb"


def test_an_answer_has_its_headers_and_on_head_no_body() -> None:
    error = Unavailable("The store cannot be reached.")
    status, headers, body = xml.answer(error, method="GET", path="/b/k", request_id="r1")
    assert (status, dict(headers)[b"content-length"]) == (503, str(len(body)).encode())
    assert dict(headers)[b"retry-after"] == b"1"
    assert dict(headers)[b"content-type"] == b"application/xml"
    status, headers, body = xml.answer(error, method="HEAD", path="/b/k", request_id="r1")
    assert (status, body) == (503, b"")
    assert dict(headers) == {b"x-amz-request-id": b"r1", b"retry-after": b"1"}


ERROR = b"<Error><Code>NoSuchKey</Code><Message>It &lt;is&gt; gone.</Message><HostId>h</HostId></Error>"


BOMB_OF_THE_STORE = (
    b'<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><Error><Code>&b;</Code></Error>'
)


OUTSIDE = b'<!DOCTYPE e [<!ENTITY x SYSTEM "file:///etc/passwd">]><Error><Code>&x;</Code></Error>'


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (ERROR, ErrorDocument("NoSuchKey", "It <is> gone.")),
        (b'<?xml version="1.0" encoding="UTF-8"?>\n' + ERROR, ErrorDocument("NoSuchKey", "It <is> gone.")),
        (
            ERROR.replace(b"<Error>", b'<Error xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'),
            ErrorDocument("NoSuchKey", "It <is> gone."),
        ),
        (b"<Error/>", ErrorDocument("", "")),
        (b"<CompleteMultipartUploadResult/>", None),
        (b"<Error><Code>", None),
        (b"\xff\xfe", None),
        (BOMB_OF_THE_STORE, None),
        (OUTSIDE, None),
    ],
)
def test_errors_of_the_store_are_read(body: bytes, expected: ErrorDocument | None) -> None:
    assert xml.read_error(body) == expected
