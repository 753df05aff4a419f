"""Start an embedded PostgreSQL and S3 with the old service's tables and bucket, and print their addresses for a shell."""

import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import boto3
import psycopg

from gateway.demo import embedded
from gateway.demo.embedded import under_role

TABLES = Path(__file__).with_name("shop.sql")


@contextmanager
def old_service(directory: Path) -> Iterator[Mapping[str, str]]:
    """Run both; the variables that the pages in docs/guides use."""
    with embedded.postgres(directory / "postgres") as server, embedded.s3() as s3:
        with psycopg.connect(server.dsn(), autocommit=True) as superuser:
            for statement in (
                "CREATE ROLE owner LOGIN",
                "CREATE ROLE app LOGIN",
                "CREATE ROLE gateway LOGIN",
                "CREATE DATABASE shop OWNER owner",
            ):
                superuser.execute(statement)
        dsn = server.dsn("shop")
        owner, app, gateway = (under_role(dsn, role) for role in ("owner", "app", "gateway"))
        with psycopg.connect(dsn, autocommit=True) as superuser:
            superuser.execute("ALTER SCHEMA public OWNER TO owner")
        with psycopg.connect(owner) as tables:
            tables.execute(TABLES.read_text().encode())
        store = s3.endpoint()
        keys = {"aws_access_key_id": "store", "aws_secret_access_key": "store-secret"}
        s3_client = boto3.client("s3", endpoint_url=store, region_name="us-east-1", **keys)
        for bucket in ("documents", "journal"):
            s3_client.create_bucket(Bucket=bucket)
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
            **{name.upper(): value for name, value in keys.items()},
        }


def main() -> None:
    embedded.require_packages()
    # Below /tmp itself: PostgreSQL runs as another user where this runs as root, and its socket needs a short path.
    with tempfile.TemporaryDirectory(prefix="retrofit-", dir="/tmp") as name, old_service(Path(name)) as variables:
        for variable, value in variables.items():
            print(f"export {variable}={shlex.quote(value)}")
        print(f'export PATH="{Path(embedded.psql()).parent}:$PATH"')
        print("# It runs until its input ends (Ctrl-D).", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
