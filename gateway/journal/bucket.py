"""A journal in a bucket: the objects below a prefix of one bucket of an S3 store.

The store must be linearizable for single objects, and list an object once it has answered for it. ``find_unfit`` tries
what can be tried. A request that arrives late does no harm here: it adds what a holder has shown, or finds its
condition broken.
"""

from urllib.parse import quote

from gateway.errors import JournalUnusable, StoreError, Unavailable
from gateway.journal.contents import PREFIX, Flaw, Problem
from gateway.objects.s3 import listing_pages, xml
from gateway.objects.s3.answers import Applied, NotApplied, NotSent, Rejected, Unknown, WriteAnswer
from gateway.objects.s3.operations import Operation
from gateway.objects.store.bucket_profile import Profile
from gateway.objects.store.client import StoreResponse, path, query_of
from gateway.objects.store.operations import Upstream
from gateway.objects.store.probe import Profiles

_MAX_OBJECT = 4 * 1024**3
_MAX_PAGE = 16 * 1024**2
_TYPE = ("content-type", "application/octet-stream")


class BucketStore:
    """A ``Store`` of ``gateway.journal.archive`` in a bucket."""

    def __init__(self, upstream: Upstream, bucket: str, prefix: str = PREFIX) -> None:
        self._upstream, self._bucket, self._prefix = upstream, bucket, prefix
        # As every bucket, it is probed before the first write: some stores want conditions in another form.
        self._profiles = Profiles(upstream)

    async def add(self, name: str, content: bytes) -> bool:
        return self._written(name, await self._put(name, content, None))

    async def replace(self, name: str, content: bytes, version: str) -> bool:
        return self._written(name, await self._put(name, content, version))

    async def read(self, name: str) -> tuple[bytes, str] | None:
        try:
            async with await self._upstream.send("GET", self._path(name)) as response:
                etag = (response.header("etag") or "").strip('"')
                if response.status == 200 and etag:
                    return await response.read(_MAX_OBJECT), etag
                code = await _code(response)
        except Unavailable as error:
            raise _unreachable(error) from error
        if response.status == 404 and code != "NoSuchBucket":
            return None
        raise Flaw(Problem.UNREACHABLE, f"the store does not show {name}: {response.status} {code}".strip()).error()

    async def names(self, prefix: str) -> list[str]:
        wanted = {"list-type": 2, "encoding-type": "url", "prefix": self._prefix + prefix}
        found: list[str] = []
        following: dict[str, str] | None = {}
        while following is not None:
            page = await self._page(query_of({**wanted, **following}))
            found += [entry.name.removeprefix(self._prefix) for entry in page.entries]
            next_page = page.following(Operation.LIST_OBJECTS_V2)
            following = None if next_page is None else dict(next_page)
        return found

    async def remove(self, name: str) -> None:
        answer, _ = await self._upstream.exchange("DELETE", self._path(name), "", (), b"", signed_at=None)
        if not isinstance(answer, Applied | NotApplied):
            raise _fault(name, answer)

    async def find_unfit(self) -> Flaw | None:
        """Return the reason why the bucket is not linearizable, as far as a probe can tell."""
        profile = await self._profile()
        if profile.put_conditions and profile.reads_back:
            return None
        return Flaw(Problem.UNFIT, f"the bucket does not hold to conditions: {profile.reason}")

    async def _put(self, name: str, content: bytes, expected: str | None) -> WriteAnswer:
        await self._profile()
        key, signed_at = quote(self._prefix + name), await self._upstream.time()
        return await self._upstream.put((self._bucket, key), content, [_TYPE], expected=expected, signed_at=signed_at)

    async def _profile(self) -> Profile:
        try:
            return await self._profiles.of(self._bucket)
        except StoreError as error:
            raise Flaw(Problem.UNWRITABLE, f"the store refuses it: {error.code}").error() from error
        except Unavailable as error:
            raise _unreachable(error) from error

    def _written(self, name: str, answer: WriteAnswer) -> bool:
        if isinstance(answer, Applied):
            return True
        if isinstance(answer, NotApplied) and answer.status in (409, 412):
            return False
        raise _fault(name, answer)

    async def _page(self, query: str) -> listing_pages.ListingPage:
        try:
            async with await self._upstream.send("GET", f"/{self._bucket}", query) as response:
                document = await response.read(_MAX_PAGE)
        except Unavailable as error:
            raise _unreachable(error) from error
        page = listing_pages.read(document) if response.status == 200 else None
        if page is None:
            refusal = xml.read_error(document)
            code = refusal.code if refusal else ""
            raise Flaw(Problem.UNREACHABLE, f"the store does not list it: {response.status} {code}".strip()).error()
        return page

    def _path(self, name: str) -> str:
        return path((self._bucket, quote(self._prefix + name)))


def _unreachable(error: Unavailable) -> JournalUnusable:
    return Flaw(Problem.UNREACHABLE, error.message.rstrip(".")).error()


def _fault(name: str, answer: WriteAnswer) -> JournalUnusable:
    """Return the error for an answer that does not say whether the write took effect, or that it was refused."""
    match answer:
        case Rejected(_, code):
            return Flaw(Problem.UNWRITABLE, f"the store refuses to write {name}: {code}").error()
        case NotApplied(status, code):
            return Flaw(Problem.UNWRITABLE, f"the store refuses to write {name}: {status} {code}").error()
        case NotSent(reason) | Unknown(reason):
            return Flaw(Problem.UNREACHABLE, reason.rstrip(".")).error()
        case _:
            raise AssertionError(answer)


async def _code(response: StoreResponse) -> str:
    error = xml.read_error(await response.read())
    return error.code if error else ""
