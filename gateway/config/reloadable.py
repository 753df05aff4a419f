"""The differences between two configurations, without secrets, and which of them need another process."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, SecretStr

from gateway.config.explanations import NAMING_KEYS
from gateway.config.toml import REDACTED, value_text

if TYPE_CHECKING:
    from gateway.config import Config

_ABSENT = "absent"
# An address of a webhook often has a key in it.
_SECRET_ADDRESSES = ("webhooks", "url")


@dataclass(frozen=True, slots=True)
class Change:
    """A setting that differs. ``was`` and ``now`` are redacted TOML. ``key`` is empty for a whole entry."""

    section: str
    entry: str | None
    key: str
    was: str
    now: str

    @property
    def setting(self) -> str:
        """The setting as errors of the configuration name it."""
        words = f"[{self.section}]" if self.entry is None else f'[[{self.section}]] "{self.entry}"'
        return f"{words}, {self.key}" if self.key else words

    @property
    def needs_restart(self) -> bool:
        """Whether the new value needs another process. A socket, the server and telemetry last as long as
        their process.

        So does the journal: requests under way would raise fences that the new mode wants in it.
        """
        switches_tls = self.key == "tls_certificate" and _ABSENT in (self.was, self.now)
        if self.section in ("databases", "stores"):
            # All gateways must agree on the owner of each name, and a reload takes one after the other.
            return self.key in ("", "order", "dsn", "schemas", "buckets", "resources", "store", "journal", "endpoint")
        # Nor can one database become several.
        if self.section == "postgres" and not self.key:
            return True
        return self.section in ("telemetry", "journal") or (
            self.section == "server" and (self.key in ("listen", "drain") or switches_tls)
        )

    def __str__(self) -> str:
        return f"{self.setting}: {self.was} -> {self.now}"


def changes(before: "Config", after: "Config") -> list[Change]:
    """Return what differs, in the order of the sections."""
    return [change for name in type(before).model_fields for change in _of_section(name, before, after)]


def _of_section(name: str, before: "Config", after: "Config") -> Iterator[Change]:
    was, now = getattr(before, name), getattr(after, name)
    if not isinstance(was, tuple):
        yield from _of_entry(name, None, was, now)
        return
    old, new = _by_name(was), _by_name(now)
    for entry in {**old, **new}:
        yield from _of_entry(name, entry, old.get(entry), new.get(entry))
    if list(old) != list(new) and set(old) == set(new):
        yield Change(name, None, "order", ", ".join(old), ", ".join(new))


def _of_entry(section: str, entry: str | None, was: BaseModel | None, now: BaseModel | None) -> Iterator[Change]:
    if was is None or now is None:
        if was is not now:
            yield Change(section, entry, "", _presence(was), _presence(now))
        return
    for key in type(was).model_fields:
        old, new = getattr(was, key), getattr(now, key)
        if old != new:
            hidden = (section, key) == _SECRET_ADDRESSES or _holds_secret(old) or _holds_secret(new)
            yield Change(section, entry, key, *(_text(value, hidden=hidden) for value in (old, new)))


def _by_name(entries: tuple[BaseModel, ...]) -> Mapping[str, BaseModel]:
    """Return entries by their names, or by their numbers if they have none, as grants."""
    return {
        next((str(getattr(one, key)) for key in NAMING_KEYS if hasattr(one, key)), str(number)): one
        for number, one in enumerate(entries, 1)
    }


def _presence(entry: BaseModel | None) -> str:
    return _ABSENT if entry is None else "present"


def _text(value: Any, *, hidden: bool) -> str:
    if value is None:
        return _ABSENT
    return REDACTED if hidden else value_text(value)


def _holds_secret(value: Any) -> bool:
    if isinstance(value, BaseModel):
        return any(_holds_secret(getattr(value, name)) for name in type(value).model_fields)
    return isinstance(value, SecretStr) or (isinstance(value, tuple) and any(map(_holds_secret, value)))
