"""Which resource a key belongs to. Each key has exactly one: two names would fence it apart from itself."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from gateway.errors import ConfigurationError, ResourceMalformed, ResourceMismatch, StoreError
from gateway.fencing.decision import Enforcement, Equal
from gateway.fencing.naming import BucketNaming
from gateway.fencing.ownership import OWN_KEYS, Owned
from gateway.fencing.resource import MAX_BYTES, Template, escape, escape_path

DEFAULT_TEMPLATE = "s3/{bucket}/{key}"
DEFAULT_RULE = "s3"
"""The rule on record of a key that no rule is about. A pattern always has a slash."""

_FIELD = re.compile(r"\{([^{}/]+)\}")
# No name has these characters. They stand for an unknown value, and for the unknown end of a key.
_ANY, _REST = "\0", "\1"


@dataclass(frozen=True, slots=True)
class ObjectTarget:
    """The fence of writes to one key. ``rule``: the pattern of the rule that says so.

    ``too_long``: the key is too long for a name, and its rule observes. ``resource`` is a stand-in then.
    """

    resource: str
    mode: Enforcement
    equal: Equal
    rule: str = DEFAULT_RULE
    too_long: bool = False


@dataclass(frozen=True, slots=True)
class KeyRule:
    """Keys that match a pattern, and how they map to resources. ``mode`` and ``equal`` None: the general setting."""

    pattern: re.Pattern[str]
    fields: tuple[str, ...]
    template: Template
    mode: Enforcement | None
    equal: Equal | None
    match: str

    @classmethod
    def compile(
        cls, match: str, resource: str | None = None, mode: Enforcement | None = None, equal: Equal | None = None
    ) -> Self:
        """Read a rule. ``match`` is over ``bucket/key``. Raises ``ConfigurationError``.

        In it ``{name}`` is one segment that is not empty, ``*`` any one segment, and a last ``**`` all the rest.
        """
        pattern, fields = _pattern(match)
        template = Template.parse(DEFAULT_TEMPLATE if resource is None else resource)
        unbound = set(template.fields) - set(fields) - {"bucket", "key"}
        if unbound:
            raise ConfigurationError(f"object rule {match!r}: {{{min(unbound)}}} is not a field of the pattern")
        if "key" in template.fields[:-1]:
            raise ConfigurationError(f"object rule {match!r}: {{key}} must be the last field of the resource")
        return cls(pattern, fields, template, mode, equal, match)

    @property
    def names(self) -> Template:
        """Return the template with the bucket in it, where the rule is about one bucket."""
        bucket = self.match.partition("/")[0]
        if bucket == "*" or _FIELD.fullmatch(bucket):
            return self.template
        return Template.parse(self.template.text.replace("{bucket}", escape(bucket)))

    def may_concern(self, bucket: str) -> bool:
        """Return whether the rule may be about keys of this bucket."""
        first = self.match.partition("/")[0]
        return first in (bucket, "*") or _FIELD.fullmatch(first) is not None

    def resource(self, bucket: str, key: str) -> str | None:
        """Return the resource of a key, None where the rule is not about it.

        Raises ``ResourceMalformed`` if its name is too long.
        """
        match = self.pattern.fullmatch(f"{bucket}/{key}")
        if match is None:
            return None
        return _name(self.template, bucket, key, dict(zip(self.fields, match.groups(), strict=True)))

    def below(self, bucket: str, prefix: str) -> tuple[str, bool] | None:
        """Return a pattern that covers the resources of the keys below a prefix that the rule is about.

        The second value says whether it is about all keys below the prefix. None where it is about none of them.
        """
        segments, (*whole, begun) = self.match.split("/"), (bucket, *prefix.split("/"))
        open_ended = segments[-1] == "**"
        if open_ended:
            segments.pop()
        elif len(segments) <= len(whole):
            return None
        values: dict[str, str] = {}
        for position, segment in enumerate(segments):
            known = whole[position] if position < len(whole) else None
            if field := _FIELD.fullmatch(segment):
                if known == "":
                    return None
                values[field[1]] = _ANY if known is None else escape(known)
            elif segment != "*" and not (
                segment == known if known is not None else position > len(whole) or segment.startswith(begun)
            ):
                return None
        return _below(self.template, bucket, prefix, values), open_ended and len(segments) <= len(whole)


def _name(template: Template, bucket: str, key: str, values: dict[str, str]) -> str:
    escaped = {name: escape(value) for name, value in values.items()}
    escaped |= {"bucket": escape(bucket), "key": escape_path(key)}
    try:
        return template.join([escaped[field] for field in template.fields])
    except ResourceMalformed as error:
        raise ResourceMalformed(
            f"The key is too long to be a resource: its name may have {MAX_BYTES} bytes, percent-encoded.",
            advice="Use a shorter key, or ask the operator for an object rule with a shorter resource.",
        ) from error


def _below(template: Template, bucket: str, prefix: str, escaped: Mapping[str, str]) -> str:
    """Return a pattern for the names of all keys below a prefix. ``escaped``: the values of the fields, or ``_ANY``."""
    values = {**escaped, "bucket": escape(bucket), "key": escape_path(prefix) + _REST}
    text = template.literals[0]
    for field, literal in zip(template.fields, template.literals[1:], strict=True):
        text += values[field] + literal
    pattern: list[str] = []
    for segment in text.split("/"):
        if _REST in segment:
            pattern.append("**")
            break
        pattern.append("*" if _ANY in segment else segment)
    return "/".join(pattern)


def _pattern(match: str) -> tuple[re.Pattern[str], tuple[str, ...]]:
    """Return a pattern as a regular expression with one group for each of its fields."""
    segments, fields, parts = match.split("/"), [], []
    if len(segments) < 2 or not segments[0] or segments[0] == "**":
        raise ConfigurationError(f"object rule {match!r}: must be a bucket, a slash and a pattern for keys")
    for position, segment in enumerate(segments):
        field = _FIELD.fullmatch(segment)
        if field is not None:
            fields.append(field[1])
            parts.append("([^/]+)")
        elif segment == "**" and position == len(segments) - 1:
            parts.append(".*")
        elif segment == "*":
            parts.append("[^/]*")
        elif "*" in segment or "{" in segment or "}" in segment:
            raise ConfigurationError(f"object rule {match!r}: {segment!r} must be a name, {{field}}, * or a last **")
        else:
            parts.append(re.escape(segment))
    if len(set(fields)) < len(fields) or {"bucket", "key"} & set(fields):
        raise ConfigurationError(f"object rule {match!r}: each field once, and none may be called bucket or key")
    return re.compile("/".join(parts), re.DOTALL), tuple(fields)


class Resources:
    """All object rules, in their order: the first match decides. ``mode`` and ``equal`` hold in general."""

    def __init__(
        self,
        rules: Iterable[KeyRule] = (),
        *,
        mode: Enforcement = Enforcement.ENFORCE,
        equal: Equal = Equal.ACCEPT,
        journals: Iterable[str] = (),
        owned: Owned | None = None,
    ) -> None:
        """``journals``: the prefixes of keys at which journals are, in whichever bucket.

        ``owned``: the keys that are fenced here, if others are fenced in other databases.
        """
        self._owned = owned
        self._own = (OWN_KEYS, *journals)
        # A store that keeps objects as files could then make no file below.
        self._above = {own[:end] for own in self._own for end, sign in enumerate(own) if sign == "/"}
        self._rules = tuple(rules)
        self._default = Template.parse(DEFAULT_TEMPLATE)
        self._mode, self._equal = mode, equal

    def naming(self, bucket: str) -> BucketNaming:
        """Return the rules of a bucket's keys as the database keeps them, the default rule last."""
        rules = [(rule.match, rule.template.text) for rule in self._rules if rule.may_concern(bucket)]
        return BucketNaming((*rules, (f"{bucket}/**", DEFAULT_TEMPLATE)))

    def target(self, bucket: str, key: str, named: str | None = None) -> ObjectTarget:
        """Return what fences ``key``. ``named`` is the value of Fencing-Resource, in canonical form.

        Raises ``ResourceMismatch`` where it names another resource and its rule enforces. Raises ``ResourceMalformed``
        where the name gets too long, ``StoreError`` for a key of the gateway's own. Raises ``CrossesDatabases`` for a
        key of another database.
        """
        self.check_place(bucket, key)
        target = self.of_any(bucket, key)
        if named not in (None, target.resource) and target.mode is Enforcement.ENFORCE:
            raise ResourceMismatch(
                f"This key belongs to the resource {target.resource}, not to {named}.",
                advice=f"Leave Fencing-Resource out, or send {target.resource}.",
                facts={"resource": target.resource},
            )
        return target

    def check_place(self, bucket: str, key: str) -> None:
        """Raise ``CrossesDatabases`` for a key that is fenced in another database."""
        if self._owned is not None:
            self._owned.check_key(bucket, key)

    def of_any(self, bucket: str, key: str) -> ObjectTarget:
        """Return what fences a key, in whichever database. Raises what ``target`` raises of the others."""
        if key.startswith(self._own) or key in self._above:
            raise StoreError.known("AccessDenied", "This key is for the gateway's own objects.")
        return self._derived(bucket, key)

    def below(self, bucket: str, prefix: str) -> Iterator[str]:
        """Yield patterns that together cover the resources of all keys that begin with ``prefix``, and maybe others."""
        for rule in self._rules:
            found = rule.below(bucket, prefix)
            if found is not None:
                pattern, of_all = found
                yield pattern
                if of_all:
                    return
        yield _below(self._default, bucket, prefix, {})

    def _derived(self, bucket: str, key: str) -> ObjectTarget:
        mode, equal, match = self._mode, self._equal, DEFAULT_RULE
        try:
            for rule in self._rules:
                mode, equal, match = rule.mode or self._mode, rule.equal or self._equal, rule.match
                resource = rule.resource(bucket, key)
                if resource is not None:
                    return ObjectTarget(resource, mode, equal, match)
            mode, equal, match = self._mode, self._equal, DEFAULT_RULE
            return ObjectTarget(_name(self._default, bucket, key, {}), mode, equal, match)
        except ResourceMalformed:
            if mode is Enforcement.ENFORCE:
                raise
            return ObjectTarget(_stand_in(bucket, key), mode, equal, match, too_long=True)


def _stand_in(bucket: str, key: str) -> str:
    """Return a name for a key that is too long for one. No key has it: the slashes of keys stay slashes."""
    return f"s3/{escape(bucket)}/%2F{hashlib.sha256(key.encode()).hexdigest()}"
