"""Start an embedded PostgreSQL and S3 with the old service's tables and bucket. Print their addresses for a shell."""

import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import boto3
import psycopg
from psycopg.conninfo import make_conninfo

from gateway.demo import embedded
from gateway.demo.embedded import under_role

TABLES = Path(__file__).with_name("shop.sql")


def fill(superuser: str) -> None:
    """Make the roles, the database and the tables of the old service. ``superuser``: a connection string."""
    with psycopg.connect(superuser, autocommit=True) as connection:
        for statement in (
            "CREATE ROLE owner LOGIN",
            "CREATE ROLE app LOGIN",
            "CREATE ROLE gateway LOGIN",
            "CREATE DATABASE shop OWNER owner",
        ):
            connection.execute(statement)
    with psycopg.connect(make_conninfo(superuser, dbname="shop"), autocommit=True) as connection:
        connection.execute("ALTER SCHEMA public OWNER TO owner")
    with psycopg.connect(make_conninfo(superuser, dbname="shop", user="owner")) as connection:
        connection.execute(TABLES.read_text().encode())


@contextmanager
def old_service(directory: Path) -> Iterator[Mapping[str, str]]:
    """Run both; the variables that the pages in docs/guides use."""
    with embedded.postgres(directory / "postgres") as server, embedded.s3() as s3:
        fill(server.dsn())
        owner, app, gateway = (under_role(server.dsn("shop"), role) for role in ("owner", "app", "gateway"))
        store = s3.endpoint()
        client = boto3.client(
            "s3",
            endpoint_url=store,
            region_name="us-east-1",
            aws_access_key_id="store",
            aws_secret_access_key="store-secret",
        )
        for bucket in ("documents", "journal"):
            client.create_bucket(Bucket=bucket)
        yield {
            "ADMIN": under_role(server.dsn(), "postgres"),
            "OWNER": owner,
            "APP": app,
            "GATEWAY_POSTGRES__DSN": gateway,
            "GATEWAY_S3__ENDPOINT": store,
            # From here on as the old service has them.
            "PGHOST": str(directory / "postgres"),
            "PGDATABASE": "shop",
            "PGUSER": "app",
            "AWS_ENDPOINT_URL": store,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "store",
            "AWS_SECRET_ACCESS_KEY": "store-secret",
        }


def main() -> None:
    embedded.require_packages()
    # Below /tmp itself: PostgreSQL runs as another user where this runs as root, and its socket needs a short path.
    with tempfile.TemporaryDirectory(prefix="retrofit-", dir="/tmp") as name, old_service(Path(name)) as variables:
        for variable, value in variables.items():
            print(f"export {variable}={shlex.quote(value)}")
        print(f'export PATH="{Path(embedded.psql()).parent}:$PATH"')
        print("# It runs until its input ends (Ctrl-D).", flush=True)
        with suppress(KeyboardInterrupt):
            sys.stdin.read()


if __name__ == "__main__":
    # Otherwise PostgreSQL would outlive this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    main()
