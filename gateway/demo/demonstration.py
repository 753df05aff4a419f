"""``gateway demo``: everything embedded, sample data, and commands to paste."""

import asyncio
import fcntl
import shlex
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from string import Template

from rich.console import Console

from gateway import serving
from gateway.app import build
from gateway.auth.grants import Action
from gateway.config import Config, of
from gateway.config.databases import DatabaseConfig
from gateway.db import fences, migrations
from gateway.db.database import Database
from gateway.demo import embedded, incident, story
from gateway.errors import ConfigurationError
from gateway.guard.installation import GuardRequest, install

HOST = "127.0.0.1"
DATABASE = "app"
BUCKET = "reports"
FIRST_TOKEN = 33

# The story writes row 1, the printed commands 2 and 3, the README 4, and the quick start 5. The fence that one raises
# would refuse the tokens of another.
SAMPLE = (
    """CREATE TABLE IF NOT EXISTS public.accounts
       (id bigint PRIMARY KEY, owner text NOT NULL, balance bigint NOT NULL, note text)""",
    """INSERT INTO public.accounts (id, owner, balance)
       VALUES (1, 'ann', 100), (2, 'bob', 200), (3, 'eve', 300), (4, 'joe', 100), (5, 'sue', 200)
       ON CONFLICT DO NOTHING""",
)

GUARDED = {"public.orders": "order/{id}", "public.runs": "job/{job}", "public.catalogue": "dataset/{dataset}"}
"""The guarded tables, with the resources of their rows."""

ROLE = "app"
"""A role that writes the guarded tables past the gateway."""

GUARDED_SAMPLE = (
    "DO $$ BEGIN CREATE ROLE app LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$",
    "CREATE TABLE IF NOT EXISTS public.orders (id bigint PRIMARY KEY, state text NOT NULL, label text)",
    "INSERT INTO public.orders (id, state) VALUES (5, 'new'), (6, 'new') ON CONFLICT DO NOTHING",
    """CREATE TABLE IF NOT EXISTS public.runs
       (job text, day date, machine text NOT NULL, PRIMARY KEY (job, day))""",
    """CREATE TABLE IF NOT EXISTS public.catalogue
       (dataset text PRIMARY KEY, file text NOT NULL, rows bigint NOT NULL)""",
    f"GRANT SELECT, INSERT, UPDATE, DELETE ON {', '.join(GUARDED)} TO app",
)

INTRODUCTION = Template("""The page with what was refused: $url/ui/
Paste the commands below into another terminal. Ctrl-C stops everything.

The gateway is at $url. Behind it:
  table   public.accounts, rows 1 to 5     ($tables)
  table   public.orders, rows 5 and 6      (guarded, for the role "app")
  table   public.runs, public.catalogue    (guarded, too, and empty: for examples/)
  bucket  $bucket                          (in memory, gone when this ends)
The caller "demo" has the S3 keys demo / demo-secret, and the API key demo-key.
Tables can be used without a key. For examples/ and `gateway run`, with the
database of the role "app":
export GATEWAY_URL=$url GATEWAY_API_KEY=demo-key GATEWAY_POSTGRES=$database
""")

EPILOGUE = """
The page shows this, and a sample of days before: gateway demo --story --keep
"""

EPILOGUE_KEPT = Template("""
The page: $url/ui/
It shows this, and what happened in the last days, which is a sample: a nightly
job whose VM was stopped, an election that would not settle, a cron job on three
machines, an importer that is only observed. The same in a terminal:

$gateway audit search --url $url --resource job/nightly-report --kind rejection
$gateway audit verify --url $url
""")


def run(port: int, data: Path | None, signals: serving.Signals, *, with_story: bool, keep: bool) -> bool:
    """Run the demo until its story is told or a signal comes. True unless the story did not go as it must.

    ``data`` is where the tables are kept; None throws them away. ``keep`` stays after the story.
    """
    console = Console(highlight=False)
    # The story is folded between words. Addresses and commands are printed whole, to be pasted.
    console.soft_wrap = not console.is_terminal
    embedded.require_packages()
    with ExitStack() as stack:
        listener = stack.enter_context(serving.bind(HOST, port, "Choose another port with --port."))
        url = f"http://{HOST}:{listener.getsockname()[1]}"
        directory = stack.enter_context(_directory(data))
        console.print("Starting PostgreSQL, S3 and the gateway …")
        with signals.postponed():
            config = _services(stack, directory)
            dsn = config.default.postgres.dsn.get_secret_value()
            database = embedded.under_role(dsn, ROLE)
            if with_story:
                asyncio.run(_write_incident(dsn))
            app = build(config, _quiet) if with_story else build(config)
            serving.collect_rarely()
            stack.enter_context(serving.in_background(app, listener))
        stack.callback(signals.ignore)
        told = not with_story or story.play(url, _next_token(dsn), console)
        if with_story:
            kept = EPILOGUE_KEPT.substitute(url=url, gateway=_beside("gateway"))
            console.print(kept if keep else EPILOGUE, soft_wrap=True)
        if keep or not with_story:
            tables = "thrown away when this ends" if data is None else f"kept in {data}"
            quoted = shlex.quote(database)
            said = INTRODUCTION.substitute(url=url, tables=tables, bucket=BUCKET, database=quoted)
            console.print(said, soft_wrap=True)
            print(commands(url, _next_token(dsn), database), flush=True)  # noqa: T201 - to be pasted as it stands
            threading.Event().wait()
    return told


@contextmanager
def sample(directory: Path) -> Iterator[str]:
    """Serve the sample of the last days alone, for pictures. Yields the address; the database is in ``directory``."""
    embedded.require_packages()
    with ExitStack() as stack:
        listener = stack.enter_context(serving.bind(HOST, 0))
        config = _services(stack, directory)
        asyncio.run(_write_incident(config.default.postgres.dsn.get_secret_value()))
        stack.enter_context(serving.in_background(build(config, _quiet), listener))
        yield f"http://{HOST}:{listener.getsockname()[1]}"


def configuration(dsn: str, endpoint: str) -> Config:
    """Return the configuration of the demo's gateway. Nothing comes from the environment."""
    keys = {"access_key_id": "demo", "secret_access_key": "demo-secret", "api_key": "demo-key"}
    return of(
        {
            "postgres": {"dsn": dsn},
            "s3": {"endpoint": endpoint, "access_key_id": "embedded", "secret_access_key": "embedded"},
            "server": {"rest_v1": True},
            "callers": [{"name": "demo", **keys}],
            # The pasted commands use tables, locks and the record without a key. Objects need the demo's own keys.
            "grants": [
                {"callers": ["demo"], "actions": [action.value for action in Action], "everything": True},
                {
                    "callers": ["anonymous"],
                    "actions": ["read", "write", "lock", "barrier"],
                    "tables": ["public.*"],
                    "resources": ["**"],
                },
                {"callers": ["anonymous"], "actions": ["audit"], "everything": True},
            ],
            # One lock covers the row of an account and everything that is reported of it. The others: a job with its
            # runs and results, a data set with its files, and a producer with its events.
            "tables": [{"name": name, "resource": resource} for name, resource in GUARDED.items()],
            "objects": [
                {"match": f"{BUCKET}/accounts/{{id}}/**", "resource": "public.accounts/{id}"},
                {"match": f"{BUCKET}/jobs/{{job}}/**", "resource": "job/{job}"},
                {"match": f"{BUCKET}/datasets/{{dataset}}/**", "resource": "dataset/{dataset}"},
                {"match": f"{BUCKET}/events/{{producer}}/**", "resource": "producer/{producer}"},
                {"match": f"{BUCKET}/legacy/{{feed}}/**", "resource": "feed/{feed}", "mode": "observe"},
            ],
            "alarms": [{"name": "zombies", "more_than": 20, "minutes": 5}],
        },
        "the demo",
    )


def commands(url: str, token: int, database: str) -> str:
    """Return a shell script that uses the gateway; ``token`` is the first one that no fence has seen yet.

    ``database`` is the address of the guarded table, for its role.
    """
    python = shlex.quote(sys.executable)
    notes = "" if find_spec("postgrest") else f"\n{python} -m pip install --quiet postgrest"
    text = (Path(__file__).parent / "commands.sh").read_text(encoding="utf-8")
    values = {"url": url, "aws": _beside("aws"), "python": python, "note": notes}
    values |= {"gateway": _beside("gateway"), "psql": shlex.quote(embedded.psql()), "database": shlex.quote(database)}
    for name, value in {**values, "third": token + 2, "second": token + 1, "first": token}.items():
        text = text.replace(f"@{name}@", str(value))
    return text


def _beside(command: str) -> str:
    """Return the command that is installed with this Python, as a shell takes it; else any command of its name."""
    return shlex.quote(shutil.which(command, path=str(Path(sys.executable).parent)) or command)


def _services(stack: ExitStack, directory: Path) -> Config:
    store = stack.enter_context(embedded.s3())
    database = stack.enter_context(embedded.postgres(directory / "postgres"))
    dsn = database.dsn(DATABASE)
    asyncio.run(_create_database(database.dsn()))
    migrations.upgrade(dsn)
    endpoint = store.endpoint()
    config = configuration(dsn, endpoint)
    asyncio.run(_create_tables(config.default))
    with closing(story.objects(endpoint)) as client:
        client.create_bucket(Bucket=BUCKET)
    return config


async def _create_database(dsn: str) -> None:
    async with Database(dsn, pool_size=1) as database:
        if not await database.fetch("SELECT FROM pg_database WHERE datname = $1", DATABASE):
            await database.fetch(f"CREATE DATABASE {DATABASE}")


async def _create_tables(config: DatabaseConfig) -> None:
    async with Database(config.postgres.dsn.get_secret_value(), pool_size=1) as database:
        for statement in (*SAMPLE, *GUARDED_SAMPLE):
            await database.fetch(statement)
    # The demo has one superuser for everything, which the guard lets through.
    for table in GUARDED:
        await install(config, GuardRequest(table, role="postgres", grants=(ROLE,)))


async def _write_incident(dsn: str) -> None:
    async with Database(dsn, pool_size=1) as database:
        await incident.write(database)


def _next_token(dsn: str) -> int:
    """Return the first token that no fence of the sample has seen yet: kept tables come with their fences."""

    async def highest() -> int:
        async with Database(dsn, pool_size=1) as database:
            found = [
                await fences.list_fences(database, prefix, "", 1000) for prefix in ("public.accounts/", f"s3/{BUCKET}/")
            ]
            return max((fence.token.value for listed in found for fence in listed), default=0)

    return max(FIRST_TOKEN, asyncio.run(highest()) + 1)


@contextmanager
def _directory(data: Path | None) -> Iterator[Path]:
    """Return the directory of the database: ``data``, for this process alone, or a temporary one."""
    if data is None:
        with tempfile.TemporaryDirectory(prefix="gateway-demo-") as name:
            yield Path(name)
        return
    try:
        data.mkdir(parents=True, exist_ok=True)
        with (data / "in-use.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield data.resolve()
    except BlockingIOError as error:
        raise ConfigurationError(f"--data: {data} is in use by another demo.", advice="") from error
    except OSError as error:
        raise ConfigurationError(f"--data: {data}: {error.strerror}.", advice="") from error


def _quiet(_event: object) -> None:
    """Silence the log: the story tells the events itself."""
