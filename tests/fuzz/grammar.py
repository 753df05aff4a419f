"""How requests are framed, put behind one another, cut into pieces and broken off: what goes over one connection."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise
from random import Random

from tests.fuzz import api_deeds, object_deeds, reading, table_deeds
from tests.fuzz.deeds import AUDITOR_KEY, FIRST_MARK, OTHER_KEY, Choices, Deed
from tests.fuzz.framing import FRAMINGS, WEIGHTS, by_length, framed
from tests.fuzz.reading import Message
from tests.running import API_KEY


class End(Enum):
    """The end of a conversation, once a client has sent everything."""

    READ = "reads until everything is answered"
    HALF_CLOSE = "shuts down its side, and reads"
    ABORT = "resets the connection"


@dataclass(slots=True)
class Conversation:
    """The bytes that a client sends on one connection: pieces, each with the pause in seconds that comes before it.

    ``deeds`` are those that it was made of, and others that are hidden in their bodies, by request id. ``parts`` are
    the requests as bytes, so that a failing conversation can be made shorter.
    """

    name: str
    port: str
    parts: list[bytes]
    cuts: list[int]
    pauses: list[float]
    end: End
    deeds: dict[str, Deed] = field(default_factory=dict)

    @property
    def sent(self) -> bytes:
        return b"".join(self.parts)

    def pieces(self) -> list[tuple[float, bytes]]:
        sent = self.sent
        bounds = [0, *sorted({cut for cut in self.cuts if 0 < cut < len(sent)}), len(sent)]
        return [
            (self.pauses[number % len(self.pauses)], sent[start:end])
            for number, (start, end) in enumerate(pairwise(bounds))
        ]

    def messages(self) -> list[Message]:
        return reading.requests(self.sent)


def conversation(seed: int, number: int, cookie: str) -> Conversation:
    """Make the conversation of this number. The seed decides everything but the time of signatures."""
    random = Random(f"{seed}/{number}")
    marks = iter(range(FIRST_MARK + number * 32, FIRST_MARK + number * 32 + 32))
    choices = Choices(random, lambda: next(marks), cookie)
    made: dict[str, Deed] = {}

    def deed() -> Deed:
        name = f"fz-{number}-{len(made)}"
        made[name] = _deed(name, choices)
        return made[name]

    count = random.choice((1, 1, 1, 2, 3, 5))
    kinds = [random.choices(FRAMINGS, WEIGHTS)[0] for _ in range(count)]
    parts, endless = [], False
    for kind in kinds:
        one = deed()
        # A body may look like a request; a reader that loses its place would serve it.
        hidden = framed(deed(), random, by_length) if random.random() < 0.1 else None
        if hidden is not None and one.effect is None and not one.endless:
            one.body += hidden
        parts.append(framed(one, random, kind))
        endless = one.endless
        if endless:
            break
    end = random.choices(list(End), (8, 1, 1))[0]
    if endless:
        end = End.ABORT
    elif end is End.READ:
        name = f"fz-{number}-marker"
        made[name] = Deed(name, "GET", "/v1/ready")
        parts.append(framed(made[name], random, by_length))
    data = b"".join(parts)
    if end is End.ABORT and random.random() < 0.7:
        parts = [data[: random.randrange(len(data) + 1)]]
    if (
        random.random() < 0.15
        and not any(secret.encode() in data for secret in (API_KEY, OTHER_KEY, AUDITOR_KEY, cookie))
        and not any(one.known for one in made.values())
    ):
        # A request that proves a caller could become another one, which may write.
        parts = [_damaged(random, b"".join(parts))]
    cuts = [random.randrange(len(data) + 1) for _ in range(random.choice((0, 0, 1, 2, 5)))]
    if random.random() < 0.3:  # the rest of a body comes once its request is under way
        cuts.append(data.rfind(b"\r\n0\r\n") + 2)
    slow = random.random() < 0.05
    pauses = [0.0] + [random.choice((0.0, 0.0, 0.002, 0.03, 0.3 if slow else 0.0)) for _ in range(4)]
    port = "small" if random.random() < 0.25 else "usual"
    return Conversation(f"{seed}/{number}", port, parts, cuts, pauses, end, made)


_DEEDS = (
    *[table_deeds.update] * 3, table_deeds.insert, table_deeds.transaction, table_deeds.read, table_deeds.nonsense,
    api_deeds.barrier, api_deeds.lease, api_deeds.anything, api_deeds.watching, api_deeds.page, api_deeds.form,
    *[object_deeds.write] * 2, object_deeds.read, object_deeds.form,
)  # fmt: skip
_UNCERTAIN = (
    *("If-Match", "If-None-Match", "Idempotency-Key", "Accept", "Prefer", "Range", "Origin"),
    *("Fencing-Holder", "Content-Encoding"),
)
"""With one of these a write may succeed and change nothing."""


def _deed(name: str, choices: Choices) -> Deed:
    """Make a deed of any plane, some with a further header."""
    deed = choices.one(*_DEEDS)(name, choices)
    if choices.often(0.1):
        nasty = choices.nasty_header()
        header, value = choices.one(
            *(
                (one, nasty)
                for one in ("Accept", "Prefer", "If-Match", "Idempotency-Key", "Traceparent", "Fencing-Holder")
            ),
            *(
                ("If-None-Match", "*"),
                ("Range", "bytes=5-2,-1"),
                ("Origin", "http://evil"),
                ("Content-Encoding", "gzip"),
            ),
            *(("X-Junk", "a" * choices.one(10, 3000, 30_000)), ("Cookie", f"gateway_session={nasty}")),
            *(("X-Forwarded-For", "1.2.3.4"), ("X-HTTP-Method-Override", "DELETE"), ("Accept-Encoding", "gzip")),
        )
        deed.headers.append((header, value))
        if deed.effect is not None and header in _UNCERTAIN:
            deed.effect = replace(deed.effect, certain=False)
    return deed


def _damaged(random: Random, data: bytes) -> bytes:
    """Return the same with a few bytes changed, added or left out."""
    damaged = bytearray(data)
    for _ in range(random.choice((1, 2, 8))):
        if not damaged:
            break
        at = random.randrange(len(damaged))
        damaged[at : at + random.choice((0, 1, 3))] = random.choice(
            (b"", b"\0", b"\r", b"\n", b"\r\n\r\n", b":", b" ", b"\xff", b"0", bytes([random.randrange(256)]))
        )
    return bytes(damaged)
