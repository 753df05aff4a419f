"""``gateway init``: its file is short, says what was found, and is enough to migrate, to serve and to write."""

import asyncio
import io
import os
import pty
import stat
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest

from gateway.demo import embedded
from gateway.demo.embedded import EmbeddedPostgres, under_role
from gateway.doctor.proposal import CALLER, MOST, Need, Surroundings, document, sections
from tests.guard.stage import session
from tests.processes import COMMAND, PATIENCE, called, free_port, started

SHOP = """
CREATE TABLE orders (id bigint PRIMARY KEY, state text NOT NULL);
CREATE TABLE lines (order_id bigint REFERENCES orders ON DELETE CASCADE, line int, PRIMARY KEY (order_id, line));
CREATE TABLE journal (at timestamptz NOT NULL, said text);
CREATE TABLE rates (rate numeric PRIMARY KEY);
CREATE TABLE events (id bigint, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE events_2026 PARTITION OF events FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
CREATE TABLE "odd
name" (id bigint PRIMARY KEY);
CREATE SCHEMA billing;
CREATE TABLE billing.invoices (id bigint PRIMARY KEY);
CREATE FOREIGN DATA WRAPPER nowhere;
CREATE SERVER far FOREIGN DATA WRAPPER nowhere;
CREATE FOREIGN TABLE remote (id bigint) SERVER far;
INSERT INTO orders VALUES (1, 'new');
"""
STORE = {"AWS_ACCESS_KEY_ID": "store", "AWS_SECRET_ACCESS_KEY": "store-secret"}


def execute(dsn: str, statements: str) -> None:
    async def run() -> None:
        async with session(dsn) as owner:
            await owner.execute(statements)

    asyncio.run(run())


@pytest.fixture
def shop(postgres_server: EmbeddedPostgres) -> Iterator[str]:
    """A database that knows nothing of the gateway."""
    execute(postgres_server.dsn(), "CREATE DATABASE shop")
    execute(postgres_server.dsn("shop"), SHOP)
    yield postgres_server.dsn("shop")
    execute(postgres_server.dsn(), "DROP DATABASE shop WITH (FORCE)")


def client(endpoint: str, key: str, secret: str) -> Any:
    return boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id=key, aws_secret_access_key=secret
    )


def written(serve: list[str], *, api_key: str, access_key_id: str, secret_access_key: str, **_: str) -> Any:
    """Serve, write a row and an object without a token, look at the page, and return the record."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    with started(*serve, "--listen", f"127.0.0.1:{port}") as gateway:
        gateway.wait_for(lambda: '"listening"' in gateway.errors.read_text())
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {api_key}"}, timeout=PATIENCE) as caller:
            answer = caller.patch("/v1/tables/orders?id=eq.1", json={"state": "sent"})
            assert (answer.status_code, answer.headers["fencing-would-refuse"]) == (204, "token-required")
            with closing(client(url, access_key_id, secret_access_key)) as objects:
                objects.put_object(Bucket="reports", Key="a", Body=b"a")
            assert caller.get("/v1/tables/orders?id=eq.1").json()[0]["state"] == "sent"
            entries = caller.get("/v1/rejections").json()["rejections"]
        with httpx.Client(base_url=url, headers={"Origin": url}, follow_redirects=True, timeout=PATIENCE) as person:
            assert person.post("/ui/login", data={"api_key": api_key}).status_code == 200
            assert "public.orders/1" in person.get("/ui/resources").text
        assert gateway.stop() == 0
    return entries


def test_its_file_is_enough_to_migrate_to_serve_and_to_write(
    tmp_path: Path, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dsn").write_text(shop + "\n")
    for name, value in STORE.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "gateway.toml"
    with embedded.s3() as store:
        endpoint = store.endpoint()
        with closing(client(endpoint, *STORE.values())) as own:
            own.create_bucket(Bucket="reports")
        made = called("init", "--config", str(path), "--dsn-file", str(tmp_path / "dsn"), "--s3-endpoint", endpoint)
        assert (made.returncode, made.stderr) == (0, "")
        assert "billing" in made.stdout
        assert "that need one: 4, that the gateway cannot write: 1; buckets: 1." in " ".join(made.stdout.split())
        text = path.read_text()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert len(text.splitlines()) <= MOST
        for said in (
            "reports",
            "public.orders",
            "# public.orders needs a rule: writes reach rows of public.lines by lines_order_id_fkey",
            "# public.journal needs a rule: it has no primary key",
            "# public.rates needs a rule: 'rate' is of type numeric",
            "# public.events needs a rule: its rows in public.events_2026 can be written by that name too",
            "# public.remote is not written: its rows change outside",
            "public.odd\\x0aname",
            "# observe: writes pass, and the record says which would be refused; gateway enforce changes it",
        ):
            assert said in text
        # The commands that it ends with, in their order.
        commands = [line.split("#")[0].split() for line in made.stdout.splitlines() if line.startswith("  gateway ")]
        assert [command[1] for command in commands] == ["migrate", "doctor", "serve"]
        assert called(*commands[0][1:]).returncode == 0
        checked = called("config", "check", "--config", str(path))
        assert (checked.returncode, checked.stderr) == (0, "")
        examined = called(*commands[1][1:])
        assert examined.returncode == 0, examined.stdout
        assert "bucket reports: can be fenced" in examined.stdout
        assert 'resource = "public.orders/{order_id}"' in examined.stdout
        entries = written(commands[2][1:], **tomllib.loads(text)["callers"][0])
        assert [(entry["resource"], entry["enforced"]) for entry in entries] == [
            ("s3/reports/a", False),
            ("public.orders/1", False),
        ]
        again = called("init", "--config", str(path), "--dsn-file", str(tmp_path / "dsn"), "--no-store")
        assert (again.returncode, again.stdout) == (2, "")
        assert again.stderr.startswith(f"gateway: {path}: is there already, and was not changed. Move it")
        assert path.read_text() == text


KINDS = ("key", "type", "reach", "names", "elsewhere")


@pytest.mark.parametrize("count", [0, 1, 5, 6, 200])
def test_the_file_is_short_however_many_tables_there_are(count: int) -> None:
    """Beyond a few, tables that need a rule share a line with others of their kind."""
    needs = [Need(f"public.t{number}", kind, "why") for number in range(count) for kind in KINDS[: 1 + number % 5]]
    keyed = [f"public.k{number}" for number in range(count)]
    found = Surroundings([f"s{number}" for number in range(count)], [], keyed, needs, [f"b{n}" for n in range(count)])
    store = {"endpoint": "http://s3", "region": "eu-1", "access_key_id": "store", "secret_access_key": "secret"}
    text = document(sections("postgresql://x", store, lambda: "k" * 64), found)
    assert len(text.splitlines()) <= MOST
    assert {need.table for need in needs[:1]} <= {word.strip("#, ") for word in text.split()}
    read = tomllib.loads(text)
    assert read["grants"][0]["callers"] == [read["callers"][0]["name"]] == [CALLER]
    assert len(read["postgres"]["schemas"]) == count


def test_no_name_of_a_table_or_bucket_ends_a_comment() -> None:
    name = 'x\n[server]\nlisten = "0.0.0.0:80"\r\x00'
    found = Surroundings(["public"], [], [name], [Need(name, "key", "why")], [name])
    store = {"endpoint": "http://s3", "access_key_id": "store", "secret_access_key": "secret"}
    assert "server" not in tomllib.loads(document(sections("postgresql://x", store, lambda: "k" * 64), found))


def test_a_role_that_may_not_install_the_schema_is_told_how(tmp_path: Path, shop: str) -> None:
    execute(shop, "DO $$ BEGIN CREATE ROLE clerk LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    made = called("init", "--config", str(tmp_path / "x"), "--dsn", under_role(shop, "clerk"), "--no-store")
    assert made.returncode == 0, made.stderr
    [migrate] = [line for line in made.stdout.splitlines() if line.startswith("  gateway migrate")]
    command = migrate.replace('"$OWNER"', shop).split()[1:]
    assert command == ["migrate", "--dsn", shop, "--grant-to", "clerk"]
    assert called(*command).returncode == 0
    again = called("init", "--config", str(tmp_path / "y"), "--dsn", under_role(shop, "clerk"), "--no-store")
    assert (again.returncode, "OWNER" in again.stdout) == (0, False), "it is installed"


def test_every_key_is_new(tmp_path: Path, dsn: str) -> None:
    keys = set()
    for number in range(2):
        path = tmp_path / f"{number}.toml"
        made = called("init", "--config", str(path), "--dsn", dsn, "--no-store")
        assert (made.returncode, "bucket" in made.stdout + path.read_text()) == (0, False)
        values = tomllib.loads(path.read_text())
        assert "s3" not in values
        keys.add(values["callers"][0]["api_key"])
    assert len(keys) == 2
    assert all(len(key) == 64 for key in keys)


AT_THE_STORE = "--s3-access-key-id a --s3-secret-file {secret} --dsn {dsn} --s3-endpoint"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("", "Options are missing: --dsn-file, --s3-endpoint or --no-store. Add them, or run the command in a ter"),
        ("--dsn {dsn} --s3-endpoint http://s3", "Options are missing: --s3-access-key-id, --s3-secret-file. Add"),
        ("--dsn {dsn} --no-store --schema pubic", "--schema: there is no schema pubic; there are: public"),
        ("--dsn postgresql://x@127.0.0.1:9/x --no-store", "The database cannot be reached"),
        ("--dsn nonsense --no-store", "postgres.dsn: "),
        (
            "--dsn-file {two_lines} --no-store",
            "--dsn-file: {two_lines} has several lines; leave the secret alone in it",
        ),
        (f"{AT_THE_STORE} s3", "gateway init: [s3], endpoint: must be an http:// or https:// address"),
        (f"{AT_THE_STORE} http://127.0.0.1:9", "The store cannot be reached"),
    ],
)
def test_an_answer_that_is_missing_or_wrong_is_one_line_and_nothing_is_written(
    tmp_path: Path, dsn: str, options: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    (secret := tmp_path / "secret").write_text("store-secret")
    (two_lines := tmp_path / "two-lines").write_text(f"{dsn}\nstore-secret")
    path = tmp_path / "gateway.toml"
    told = called("init", "--config", str(path), *options.format(dsn=dsn, secret=secret, two_lines=two_lines).split())
    assert (told.returncode, told.stdout, told.stderr.count("\n")) == (2, "", 1), told
    assert told.stderr.startswith(f"gateway: {said.format(two_lines=two_lines)}")
    assert "store-secret" not in told.stderr
    assert not path.exists()


def test_a_file_that_cannot_be_written_whole_is_not_there(tmp_path: Path, dsn: str) -> None:
    path = tmp_path / "gateway.toml"
    command = [*COMMAND, "init", "--config", str(path), "--dsn", dsn, "--no-store"]
    no_room = ("sh", "-c", 'ulimit -f 0 && exec "$0" "$@"')
    told = subprocess.run([*no_room, *command], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr == f"gateway: {path}: cannot be written: File too large.\n"
    assert not path.exists()


def test_a_terminal_is_asked_for_what_no_option_gives(tmp_path: Path, dsn: str) -> None:
    own, other = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "init"], cwd=tmp_path, stdin=other, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as asked:
        os.write(own, f"{dsn}\n\n".encode())
        output, errors = asked.communicate(timeout=PATIENCE)
    os.close(own)
    os.close(other)
    assert asked.returncode == 0, errors
    assert "Database, as postgresql://" in errors
    assert "Address of the S3 store" in errors
    assert "gateway serve --config gateway.toml" in output
    assert "There are no tables yet" in output
    assert tomllib.loads((tmp_path / "gateway.toml").read_text())["postgres"]["dsn"] == dsn


def test_a_wrong_answer_is_asked_for_again_and_costs_no_other(tmp_path: Path, dsn: str) -> None:
    own, other = pty.openpty()
    secret = tmp_path / "secret"
    secret.write_text("secret")
    with embedded.s3() as store, subprocess.Popen(
        [*COMMAND, "init", "--s3-secret-file", str(secret)],
        cwd=tmp_path, stdin=other, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as asked:  # fmt: skip
        answers = ("localhost/shop", dsn, "s3", store.endpoint(), "key")
        os.write(own, "".join(f"{answer}\n" for answer in answers).encode())
        _, errors = asked.communicate(timeout=PATIENCE)
    os.close(own)
    os.close(other)
    assert asked.returncode == 0, errors
    assert "write postgresql://role:password@host:port/database" in errors
    assert "must be an http:// or https:// address, such as https://host.example.com" in errors
    assert (errors.count("Database, as"), errors.count("Address of the S3 store")) == (2, 2)
    assert tomllib.loads((tmp_path / "gateway.toml").read_text())["s3"]["access_key_id"] == "key"
