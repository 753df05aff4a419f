"""The published test vectors of Signature Version 4.

Source: the cases in ``tests/aws-signing-test-suite/v4`` of github.com/awslabs/aws-c-auth (Apache-2.0), rewritten. Each
has a request, and the signatures that the suite expects in its header form and in its query form. All are by one key,
at one moment, for a service called "service".

Left out are

- ``get-relative-normalized``, ``get-relative-relative-normalized``, ``get-slash-dot-slash-normalized``,
  ``get-slash-normalized``, ``get-slash-pointless-dot-normalized``, ``get-slashes-normalized``: S3 never normalises a
  path, ``/a/../b`` and ``/a//b`` are keys of their own. Their unnormalised twins are here.
- ``post-sts-header-after``: the session token is added after signing. S3 wants it signed, so such a request is refused
  (``test_session_tokens_must_be_signed``); its signature is that of ``post-vanilla``.

- ``get-space-unnormalized``, ``get-vanilla-query``, ``post-header-key-case``, ``post-vanilla-query``: each is the same
  request as another one here.

``get-header-key-duplicate`` and ``get-header-value-order`` repeat a header. The canonical form of its joined values is
checked here, but a request that repeats a signed header is refused (``test_nothing_that_counts_may_stand_twice``).
"""

import hashlib
from urllib.parse import quote

import pytest

from gateway.auth import signature_claims

ID, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
MOMENT = "20150830T123600Z"
SCOPE = "20150830/us-east-1/service/aws4_request"
NOTHING = hashlib.sha256(b"").hexdigest()
FORM = hashlib.sha256(b"Param1=value1").hexdigest()
UNRESERVED = b"-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
TOKEN = "6e86291e8372ff2a2260956d9b8aae1d763fbf315fa00fa31553b73ebf194267"
STS_TOKEN = (
    "AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmxfpSPfIeoIYRqTflfKD8YUuwth"
    "Ax7mSEI/qkPpKPi/kMcGdQrmGdeehM4IC1NtBmUpp2wUE8phUZampKsburEDy0KPkyQDYwT7WZ0wq5VSXDvp75YU9HFvlRd8Tx6q6fE8YQcHNVXAk"
    "iY9q6d+xo0rKwT38xVqr7ZD0u0iPPkUL64lIZbqBAz+scqKmlzm8FDrypNC9Yjc8fPOLn9FX9KSYvKTr4rvx3iSIlTJabIQwj2ICCR/oLxBA=="
)

Headers = list[tuple[str, bytes]]
GET, POST = "GET", "POST"
HOST = [("host", b"example.amazonaws.com")]
FORM_HEADERS = [("content-length", b"13"), ("content-type", b"application/x-www-form-urlencoded")]
UTF8_HEADERS = [("content-length", b"13"), ("content-type", b"application/x-www-form-urlencoded; charset=utf-8")]

# name: method, path, query, headers beside host, session token, hash of the payload, signature in header and in query
VECTORS: dict[str, tuple[str, bytes, bytes, Headers, str, str, str, str]] = {
    "get-header-key-duplicate": (
        GET, b"/", b"", [("my-header1", b"value2,value2,value1")], "", NOTHING,
        "c9d5ea9f3f72853aea855b47ea873832890dbdd183b4468f858259531a5138ea",
        "3349ee0b81b4b589da0ff28a395c3591e04de515651dd74f298fa992d1507a97",
    ),
    "get-header-value-multiline": (
        GET, b"/", b"", [("my-header1", b"value1\n  value2\n     value3")], "", NOTHING,
        "cfd34249e4b1c8d6b91ef74165d41a32e5fab3306300901bb65a51a73575eefd",
        "e6f5def831211aca02987a44b96826706278c7bc078112ae0263659c5b2f2d56",
    ),
    "get-header-value-order": (
        GET, b"/", b"", [("my-header1", b"value4,value1,value3,value2")], "", NOTHING,
        "08c7e5a9acfcfeb3ab6b2185e75ce8b1deb5e634ec47601a50643f830c755c01",
        "313720e71ca6202fdcfa9b20f88de01a4eb0638a83c833b1c184359a4eda864e",
    ),
    "get-header-value-trim": (
        GET, b"/", b"", [("my-header1", b" value1"), ("my-header2", b' "a   b   c"')], "", NOTHING,
        "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736",
        "e7bb0fd515e125e1aec2ecc4c0c17484fb06f6846b927c35e46005dd3df3acd4",
    ),
    "get-relative-relative-unnormalized": (
        GET, b"/example1/example2/../..", b"", [], "", NOTHING,
        "dc33e0856fd4baca4d7aa2146c38958283844764f38c74252a333df5e613003b",
        "b45db0bfd1cf15003493b733e33aa208dd981bd0e63037a6ed953f71d2118a16",
    ),
    "get-relative-unnormalized": (
        GET, b"/example/..", b"", [], "", NOTHING,
        "eca7ead57bb5aa5c8e28007acd4ff04e1ff9a0ff3b237ec1554a184887ff9282",
        "cbcb213b928a077e43275df47b500f1dfaa864ab3f5a18f6b95f4ff0938167ee",
    ),
    "get-slash-dot-slash-unnormalized": (
        GET, b"/./", b"", [], "", NOTHING,
        "68714168e6557f8f2de0ef956fc24dc2593a4bd2961f8df51898d8a134695145",
        "a9b13e8f3484d9505bf1a6f347219f8f35b0fe8f128ceea597efc146a3dfe90c",
    ),
    "get-slash-pointless-dot-unnormalized": (
        GET, b"/./example", b"", [], "", NOTHING,
        "beb03f223f7deae4146464f06e29eebbee9c8afbe15c290cf07aa8b119e14cff",
        "72b11f16d9530b18204bfb71f2d6ab085894c0ed8d352730a6e76234c58b5e10",
    ),
    "get-slash-unnormalized": (
        GET, b"//", b"", [], "", NOTHING,
        "c88bcd3d312d75078c0cd961d6deae3f4c754924b01669efcfcb439fd5e5b76e",
        "b2a9542809db687769200f56a844a03f2bd0291d6eb90232d5101c6a579446cd",
    ),
    "get-slashes-unnormalized": (
        GET, b"//example//", b"", [], "", NOTHING,
        "87cca117541a147f6df867677d98a7d80dff226d2bfca9e4ffa899665623c7e5",
        "822a5a9ba28072c5ab2bb4a6307d0c88276d40e49fec6b724c03fb4d4ba60fc2",
    ),
    "get-space-normalized": (
        GET, b"/example space/", b"", [], "", NOTHING,
        "652487583200325589f1fba4c7e578f72c47cb61beeca81406b39ddec1366741",
        "7a1f416954786484c9824d93c1f26ef64acb9b1b6c9154d08c9f07d0e394abf6",
    ),
    "get-unreserved": (
        GET, b"/" + UNRESERVED, b"", [], "", NOTHING,
        "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f",
        "95968482db1b9e0fadef6efc1bd24689f77c77d9ef56919c96a28cc92e0d6005",
    ),
    "get-utf8": (
        GET, b"/\xe1\x88\xb4", b"", [], "", NOTHING,
        "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85",
        "10eae3f14a260bd3911cc6d008d3c576d143b05b62f09782a7a4b37f52178e44",
    ),
    "get-vanilla": (
        GET, b"/", b"", [], "", NOTHING,
        "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
        "e93c787ed7f371d5c6b165c1b38ede9550f4dce4144713e844b25b7192d3865d",
    ),
    "get-vanilla-empty-query-key": (
        GET, b"/", b"Param1=value1", [], "", NOTHING,
        "a67d582fa61cc504c4bae71f336f98b97f1ea3c7a6bfe1b6e45aec72011b9aeb",
        "49096700cbbaa5753443850f40df10f904fc2fdb544dc9512203cc77c471a9de",
    ),
    "get-vanilla-query-order-encoded": (
        GET, b"/", b"Param-3=Value3&Param=Value2&%E1%88%B4=Value1", [], "", NOTHING,
        "371d3713e185cc334048618a97f809c9ffe339c62934c032af5a0e595648fcac",
        "c5f1848ceec943ac2ca68ee720460c23aaae30a2300586597ada94c4a65e4787",
    ),
    "get-vanilla-query-order-key-case": (
        GET, b"/", b"Param2=value2&Param1=value1", [], "", NOTHING,
        "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
        "86012e2c9ad4d77369f5d81c11f75158aae4f895a085212cc6d3f923d300bed5",
    ),
    "get-vanilla-query-unreserved": (
        GET, b"/", UNRESERVED + b"=" + UNRESERVED, [], "", NOTHING,
        "9c3e54bfcdf0b19771a7f523ee5669cdf59bc7cc0884027167c21bb143a40197",
        "8e76a88a7433637b12778d5592799b29ad21ecd6cf6325051c21d86f0acda2bf",
    ),
    "get-vanilla-utf8-query": (
        GET, b"/", b"\xe1\x88\xb4=bar", [], "", NOTHING,
        "2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04",
        "0bdd809b1519ac4f0c1dc3540e2cc46bd0c7f778eda408b2ebf3b913d21ff600",
    ),
    "get-vanilla-with-session-token": (
        GET, b"/", b"", [], TOKEN, NOTHING,
        "07ec1639c89043aa0e3e2de82b96708f198cceab042d4a97044c66dd9f74e7f8",
        "7ff2b50b376cb4d151970630573d6291dc128cc5c2a12ffb237f73cc53f67b6c",
    ),
    "post-header-key-sort": (
        POST, b"/", b"", [("my-header1", b"value1")], "", NOTHING,
        "c5410059b04c1ee005303aed430f6e6645f61f4dc9e1461ec8f8916fdf18852c",
        "c09d07e0d55871f10f2a6d350d994acf6825a3cae70673d7def55616e6119dd7",
    ),
    "post-header-value-case": (
        POST, b"/", b"", [("my-header1", b"VALUE1")], "", NOTHING,
        "cdbc9802e29d2942e5e10b5bccfdd67c5f22c7c4e8ae67b53629efa58b974b7d",
        "0698bc9e4f7f9139065ba2909c0e99da257e8e2a42492a097bcd46d792391fed",
    ),
    "post-sts-header-before": (
        POST, b"/", b"", [], STS_TOKEN, NOTHING,
        "85d96828115b5dc0cfc3bd16ad9e210dd772bbebba041836c64533a82be05ead",
        "46c2e3c63c1dbe7d39f8ada16fe7f001c1f56c5791441565323677f96308871c",
    ),
    "post-vanilla": (
        POST, b"/", b"", [], "", NOTHING,
        "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
        "2ce6e6d2e0cf2f9d1b55fafec88cd20574c31dc2e7631979f71ba2310083e95b",
    ),
    "post-vanilla-empty-query-value": (
        POST, b"/", b"Param1=value1", [], "", NOTHING,
        "28038455d6de14eafc1f9222cf5aa6f1a96197d7deb8263271d420d138af7f11",
        "a9ef26247f293bffe40eeff86a0480ba8c14d31503b2e0c3399e3a16bf1a3682",
    ),
    "post-x-www-form-urlencoded": (
        POST, b"/", b"", FORM_HEADERS, "", FORM,
        "d3875051da38690788ef43de4db0d8f280229d82040bfac253562e56c3f20e0b",
        "89a40deed0f26f9461242825a082d2222717248abc7ab41f552ad84a94ad46e9",
    ),
    "post-x-www-form-urlencoded-parameters": (
        POST, b"/", b"", UTF8_HEADERS, "", FORM,
        "328d1b9eaadca9f5818ef05e8392801e091653bafec24fcab71e7344e7f51422",
        "0dbeb9b026c7b6675f266b8427efec9b4fa8b1f6ef1477d717aea231106eab4d",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VECTORS)
def test_the_header_form(name: str) -> None:
    method, path, query, headers, token, payload, expected, _ = VECTORS[name]
    signed = [*HOST, ("x-amz-date", MOMENT.encode()), *headers]
    if payload != NOTHING:
        signed.append(("x-amz-content-sha256", payload.encode()))
    if token:
        signed.append(("x-amz-security-token", token.encode()))
    assert signature(method, path, query, signed, payload) == expected


@pytest.mark.parametrize("name", VECTORS)
def test_the_query_form(name: str) -> None:
    method, path, query, headers, token, payload, _, expected = VECTORS[name]
    signed = [*HOST, *headers]
    parameters = {
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": f"{ID}/{SCOPE}",
        "X-Amz-Date": MOMENT,
        "X-Amz-Expires": "3600",
        "X-Amz-SignedHeaders": ";".join(sorted(name for name, _ in signed)),
    }
    if token:
        parameters["X-Amz-Security-Token"] = token
    added = "&".join(f"{name}={quote(value, safe='')}" for name, value in parameters.items())
    assert signature(method, path, b"&".join([query, added.encode()]), signed, payload) == expected


def signature(method: str, path: bytes, query: bytes, headers: Headers, payload: str) -> str:
    digest, _ = signature_claims.canonical_request(method, path, query, sorted(headers), payload)
    key = signature_claims.signing_key(SECRET, "20150830", "us-east-1", "service")
    return signature_claims.signature(key, "AWS4-HMAC-SHA256", MOMENT, SCOPE, digest)
