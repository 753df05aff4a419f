"""Messages are signed as Standard Webhooks has it, and no secret is told."""

import base64
import hashlib
import hmac

import pytest

from gateway.webhooks import signing

# The test vectors of the reference implementations of Standard Webhooks.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ID, TIMESTAMP, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
PUBLISHED = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_published_signature() -> None:
    assert signing.signature(signing.key_of(SECRET), ID, TIMESTAMP, BODY) == PUBLISHED


def test_a_message_is_sent_with_its_id_the_time_and_one_signature_for_each_key() -> None:
    other = base64.b64encode(b"o" * 24).decode()
    keys = [signing.key_of(SECRET), signing.key_of(f"whsec_{other}")]
    headers = signing.headers(keys, ID, TIMESTAMP, BODY)
    second = hmac.new(b"o" * 24, f"{ID}.{TIMESTAMP}.".encode() + BODY, hashlib.sha256).digest()
    assert headers == {
        "webhook-id": ID,
        "webhook-timestamp": str(TIMESTAMP),
        "webhook-signature": f"{PUBLISHED} v1,{base64.b64encode(second).decode()}",
    }


@pytest.mark.parametrize(
    ("message_id", "timestamp", "body"),
    [("msg_other", TIMESTAMP, BODY), (ID, TIMESTAMP + 1, BODY), (ID, TIMESTAMP, BODY + b" ")],
)
def test_everything_is_signed(message_id: str, timestamp: int, body: bytes) -> None:
    assert signing.signature(signing.key_of(SECRET), message_id, timestamp, body) != PUBLISHED


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "whsec_",
        "whsec_not base64, whatever it is",
        f"whsec_{base64.b64encode(b'x' * 23).decode()}",
        f"whsec_{base64.b64encode(b'x' * 65).decode()}",
        "whsec_" + "ä" * 32,
    ],
)
def test_what_cannot_be_a_secret_is_not_repeated(secret: str) -> None:
    with pytest.raises(ValueError, match=r"must be whsec_ and the base64 of 24 to 64 random bytes") as caught:
        signing.key_of(secret)
    assert not secret or secret not in str(caught.value).removeprefix("must be whsec_")
    assert caught.value.__cause__ is None
