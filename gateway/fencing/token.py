"""Fencing tokens: read, write, compare. ``[epoch "."] value``, ordered by epoch, then by value."""

import re
from dataclasses import dataclass
from typing import Self

from gateway.errors import TokenMalformed

MAX_EPOCH = 2**31 - 1
MAX_VALUE = 2**63 - 1

# ASCII digits only: \d would also match the digits of other scripts.
FORM = r"((0|[1-9][0-9]{0,9})\.)?(0|[1-9][0-9]{0,18})"
"""The wire form, as an expression without its ends. Values out of range match it, too."""
_FORM = re.compile(FORM)


def _up_to(limit: int) -> str:
    """Return an expression for the numbers from 0 to ``limit``, without leading zeros."""
    digits = str(limit)
    lower = [
        f"{digits[:at]}[{int(at == 0)}-{int(digit) - 1}][0-9]{{{len(digits) - at - 1}}}"
        for at, digit in enumerate(digits)
        if int(digit) > int(at == 0)
    ]
    return f"(0|[1-9][0-9]{{0,{len(digits) - 2}}}|{'|'.join(lower)}|{digits})"


GRAMMAR = rf"({_up_to(MAX_EPOCH)}\.)?{_up_to(MAX_VALUE)}"
"""The same without the values out of range, which makes it ten times as long."""


@dataclass(frozen=True, order=True, slots=True)
class Token:
    """A fencing token. The epoch grows when an issuer lost its counter; the value grows with every new holder."""

    epoch: int
    value: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the wire form. Raises ``TokenMalformed`` for anything but the grammar and the ranges of the contract."""
        match = _FORM.fullmatch(text)
        if match is None:
            raise TokenMalformed(f"{_shown(text)} is not a fencing token.")
        epoch, value = int(match[2] or 0), int(match[3])
        if epoch > MAX_EPOCH or value > MAX_VALUE:
            raise TokenMalformed(f"{_shown(text)} is out of range: epochs end at {MAX_EPOCH}, values at {MAX_VALUE}.")
        return cls(epoch, value)

    @property
    def begins_an_epoch(self) -> bool:
        """Return whether a new epoch sets a fence to this token. The lease service issues only the values above it."""
        return self.value == 0

    def __str__(self) -> str:
        """Return the canonical wire form: epoch 0 is not written."""
        return f"{self.epoch}.{self.value}" if self.epoch else str(self.value)


def pair(token: Token | None) -> tuple[int | None, int | None]:
    """Return epoch and value, as a database keeps them; None for both without a token."""
    return (None, None) if token is None else (token.epoch, token.value)


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 64 else text[:61] + "...")
