"""The peer that people would write themselves: FastAPI and SQLAlchemy, and the token compared in the UPDATE's WHERE.

One worker, a pool as large as the gateway's, sessions that expire nothing: ``python -m bench.handwritten DSN PORT``.
"""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Annotated

import uvicorn
from fastapi import Depends, FastAPI, Header, HTTPException, Response
from pydantic import BaseModel
from sqlalchemy import BigInteger, update
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from bench.services import answers
from tests.processes import free_port

POOL = 16


class _Base(DeclarativeBase):
    pass


class Account(_Base):
    """A row that remembers the last token it was written under."""

    __tablename__ = "tokened"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    owner: Mapped[str]
    balance: Mapped[int] = mapped_column(BigInteger)
    note: Mapped[str | None]
    last_token: Mapped[int] = mapped_column(BigInteger)


class Change(BaseModel):
    """The columns that a client may change."""

    balance: int


def build(dsn: str) -> FastAPI:
    """Return the application."""
    engine = create_async_engine(dsn.replace("postgresql://", "postgresql+asyncpg://"), pool_size=POOL, max_overflow=0)
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    app = FastAPI(openapi_url=None)

    async def opened() -> AsyncIterator[AsyncSession]:
        async with sessions() as session:
            yield session

    @app.get("/ready", status_code=204)
    async def ready() -> None:
        return None

    @app.patch("/fenced/{number}", status_code=204, response_class=Response)
    async def change(
        number: int,
        change: Change,
        fencing_token: Annotated[int, Header()],
        session: Annotated[AsyncSession, Depends(opened)],
    ) -> None:
        async with session.begin():
            written = await session.execute(
                update(Account)
                .where(Account.id == number, Account.last_token <= fencing_token)
                .values(balance=change.balance, last_token=fencing_token)
                .returning(Account.id)
                .execution_options(synchronize_session=False)
            )
            if written.scalar_one_or_none() is None:
                raise HTTPException(412, "The token is stale, or there is no such account.")

    return app


@contextmanager
def running(dsn: str) -> Iterator[str]:
    """Serve it from a process of its own; its origin."""
    port = free_port()
    with subprocess.Popen([sys.executable, "-m", "bench.handwritten", dsn, str(port)]) as process:
        try:
            if not answers(f"http://127.0.0.1:{port}/ready"):
                raise SystemExit("the peer written by hand did not get ready")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


if __name__ == "__main__":
    uvicorn.run(
        build(sys.argv[1]),
        port=int(sys.argv[2]),
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
    )
