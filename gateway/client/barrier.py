"""Between acquiring a lock and working under it: the fence has to know the new token first, and may know better."""

import asyncio
from dataclasses import dataclass

from gateway.client.api import Api, meant, said
from gateway.client.errors import FencingError, IssuerWentBackwards, Stale, Unavailable
from gateway.client.source import Held, Source
from gateway.fencing.token import Token


@dataclass(frozen=True, slots=True)
class Barrier:
    """The fence of one resource, as a new holder meets it."""

    api: Api
    source: Source
    resource: str

    async def epoch(self) -> int:
        """The fence's epoch, for sources that know none. Read *before* the lock is acquired.

        Read afterwards, it could be newer than the number: the token of a zombie would pass for one of the new epoch.
        """
        fence = meant(await self.api.ask("GET", f"/v1/fences/{self.resource}"), self.resource)
        token = fence["token"]
        return 0 if token is None else Token.parse(token).epoch

    async def stand(self, held: Held, headers: dict[str, str], patience: float) -> None:
        """Raise the fence: once this has returned, nothing older takes effect. ``patience`` is in seconds.

        Raises ``IssuerWentBackwards``; ``Stale`` where the lock is not held any more; ``Unavailable``.
        """
        content = said(headers)
        loop = asyncio.get_running_loop()
        give_up, pause = loop.time() + patience, 0.05
        while True:
            try:
                fence = await self.api.ask("POST", f"/v1/fences/{self.resource}/barrier", content)
            except Stale as refusal:
                raise await self._behind(held, Token.parse(headers["Fencing-Token"]), refusal) from refusal
            except Unavailable:
                # What an older holder has under way has to land first, or to be given up.
                if give_up <= loop.time() + pause:
                    raise
                await asyncio.sleep(pause)
                pause = min(2 * pause, 1.0)
            else:
                meant(fence, self.resource)
                return

    async def _behind(self, held: Held, token: Token, refusal: Stale) -> FencingError:
        """What it means that a token just issued is refused."""
        if held.epoch is None and refusal.fence is not None and Token.parse(refusal.fence).epoch > token.epoch:
            return Unavailable(f"A new epoch of {self.resource} began while the lock was acquired.")
        try:
            still = await self.source.holds(held)
        except Unavailable:
            still = False
        if not still:
            return refusal
        return IssuerWentBackwards(
            f"The lock service says that {held.holder} holds {self.resource} with the token {token}, "
            f"but the fence is at {refusal.fence} already.",
            code=refusal.code,
            facts=refusal.facts,
        )
