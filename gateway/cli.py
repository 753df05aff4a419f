"""The command line.

Its commands: init, serve, health, migrate, doctor, enforce, reload, open, sweep, credentials, epoch, run, demo,
completion, auth, guard, audit, naming, databases, and config.

A problem that the user can solve is one line on standard error, with exit code 2. ``serve`` ends so, too, before it
listens. From then on, all that it writes is the log, but for two lines to a terminal.

The plain package has no libraries of the server. So this module and ``gateway.commands`` import them in functions only,
and a command that needs them says what to install.
"""

import asyncio
import re
from collections.abc import Sequence
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TypeAlias

import typer
from typer.completion import completion_init, get_completion_script  # type: ignore[attr-defined]  # both are re-exported

from gateway.commands.audit import audit
from gateway.commands.auth import auth
from gateway.commands.changes import databases, naming
from gateway.commands.config import AllowMissing, configuration
from gateway.commands.console import (
    AsJson,
    ConfigPath,
    DatabaseName,
    ExitCode,
    ReportAsJson,
    each,
    load,
    places,
    print_facts,
    print_report,
    say,
    tell,
    the_one,
)
from gateway.commands.enforce import enforce
from gateway.commands.environment import (
    AdminKeyFile,
    ApiKeyFile,
    GatewayUrl,
    api_key,
    api_key_if_any,
    environment,
    secret_access_key,
    secret_of,
)
from gateway.commands.guard import guard
from gateway.errors import ConfigurationError, GatewayError, ServerNotInstalled
from gateway.text import span, visible

if TYPE_CHECKING:
    from gateway.config.databases import DatabaseConfig


ReadScope: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN", help="A further readable resource of the S3 credentials; repeatable, or once 'all'."
    ),
]

Shell: TypeAlias = Literal["bash", "zsh", "fish"]

OWN_URL = "http://127.0.0.1:8080"
_SHOWN = 10
_EXTRA = re.compile(r"""extra\s*==\s*['"]server['"]""")
_NAME = re.compile(r"[\w.-]+")

application = typer.Typer(
    help="Fencing tokens in front of Postgres tables and S3 buckets.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

application.add_typer(auth, name="auth")
application.add_typer(guard, name="guard")
application.add_typer(audit, name="audit")
application.add_typer(naming, name="naming")
application.add_typer(databases, name="databases")
application.add_typer(configuration, name="config")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command ``gateway``. ``arguments`` default to those of the process."""
    completion_init()
    try:
        _without_values_of_flags(typer.main.get_command(application))(arguments)
    except GatewayError as error:
        _fail(error)
    except ModuleNotFoundError as error:
        if not (missing := missing_server_packages()):
            raise
        _fail(ServerNotInstalled(missing), error)


def _without_values_of_flags(command: Any) -> Any:
    """Return the command, its help without types for flags: typer shows ``<bool>``, as if a value followed."""
    for parameter in command.get_params(typer.Context(command)):
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    for inner in getattr(command, "commands", {}).values():
        _without_values_of_flags(inner)
    return command


def _fail(problem: GatewayError, cause: Exception | None = None) -> NoReturn:
    tell(problem)
    raise SystemExit(ExitCode.PROBLEM) from cause


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - the signature is typer's
    if wanted:
        typer.echo(f"gateway {version('fencing-gateway')}")
        raise typer.Exit


@application.callback()
def options(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Define the options of every command."""


@application.command("init")
def write_configuration(
    config: Annotated[Path, typer.Option(help="The file to write. One that is there is not changed.")] = Path(
        "gateway.toml"
    ),
    dsn: Annotated[str | None, typer.Option(help="The address of the database.")] = None,
    dsn_file: Annotated[
        Path | None, typer.Option(help="A file with the text of --dsn, which process lists show.")
    ] = None,
    schema: Annotated[
        list[str] | None, typer.Option(help="A schema to expose; repeatable. The default is public, if it has tables.")
    ] = None,
    s3_endpoint: Annotated[
        str | None, typer.Option(envvar="AWS_ENDPOINT_URL", help="The address of the object store.")
    ] = None,
    s3_region: Annotated[
        str, typer.Option(envvar="AWS_DEFAULT_REGION", help="The region that signatures name.")
    ] = "us-east-1",
    s3_access_key_id: Annotated[
        str | None, typer.Option(envvar="AWS_ACCESS_KEY_ID", help="The gateway's access key id at the store.")
    ] = None,
    s3_secret_file: Annotated[
        Path | None, typer.Option(help="A file with the secret access key, instead of AWS_SECRET_ACCESS_KEY.")
    ] = None,
    *,
    no_store: Annotated[bool, typer.Option("--no-store", help="There is no object store, only tables.")] = False,
) -> None:
    """Write a first configuration, for the tables and buckets that are there. It only observes.

    In a terminal it asks for what no option gives. The file has the secrets, and only its owner can read it.
    """
    from gateway.commands.init import Answers, init  # noqa: PLC0415 - few commands need it

    secret = secret_of("--s3-secret", None, s3_secret_file) or secret_access_key()
    endpoint = "" if no_store else s3_endpoint
    init(
        config, Answers(secret_of("--dsn", dsn, dsn_file), endpoint, s3_region, s3_access_key_id, secret), schema or ()
    )


@application.command()
def serve(
    config: ConfigPath = None,
    listen: Annotated[str | None, typer.Option(help="The host:port to listen on, instead of server.listen.")] = None,
    workers: Annotated[
        str, typer.Option(metavar="N|auto", help="Processes that serve, each on a core of its own; auto: one per core.")
    ] = "1",
    *,
    allow_missing: AllowMissing = False,
) -> None:
    """Run the gateway."""
    from gateway.commands.serve import Origin  # noqa: PLC0415 - it imports all libraries of both planes
    from gateway.commands.serve import serve as serve_command  # noqa: PLC0415

    serve_command(Origin(config, listen, allow_missing), workers)


@application.command()
def health(
    url: Annotated[str, typer.Option(envvar="GATEWAY_URL", help="The address of the gateway.")] = OWN_URL,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for an answer.", min=0.1)] = 4,
    *,
    alive: Annotated[
        bool, typer.Option("--alive", help="Any answer will do: the process serves, whatever the database does.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Ask a gateway whether it can take writes. Exit code 1: it cannot, or it does not answer."""
    from gateway.commands.health import problem  # noqa: PLC0415 - few commands ask

    found, asked = problem(url, timeout, alive=alive), "alive" if alive else "ready"
    if found is not None and not as_json:
        say(f"gateway: {found}")
    else:
        print_facts({"url": url, asked: found is None, "problem": found}, [asked], as_json=as_json)
    if found is not None:
        raise typer.Exit(ExitCode.NO)


@application.command(hidden=True)
def worker(number: int, count: int, talk: int, connections: int) -> None:
    """Run one worker. Only 'gateway serve --workers' starts it, with two sockets."""
    from gateway.commands.serve import serve_as_worker  # noqa: PLC0415 - it imports all libraries of both planes

    serve_as_worker(number, count, talk, connections)


@application.command()
def migrate(
    config: ConfigPath = None,
    dsn: Annotated[
        str | None,
        typer.Option(help="Connect with this DSN instead of the gateway's own, whose role then needs no DDL."),
    ] = None,
    grant_to: Annotated[
        str | None, typer.Option(help="Grant the gateway's role the rights that it needs on the schema, and no others.")
    ] = None,
    journal_dsn: Annotated[
        str | None, typer.Option(help="Also install the table of a journal, in this second database.")
    ] = None,
    dsn_file: Annotated[
        Path | None, typer.Option(help="A file with the text of --dsn, which process lists show.")
    ] = None,
    journal_dsn_file: Annotated[
        Path | None, typer.Option(help="A file with the text of --journal-dsn, which process lists show.")
    ] = None,
    database: DatabaseName = None,
) -> None:
    """Install the fencing schema, or migrate it to this version. A newer schema stays as it is.

    Several databases that are all new get what the rules give them.
    """
    dsn = secret_of("--dsn", dsn, dsn_file)
    journal_dsn = secret_of("--journal-dsn", journal_dsn, journal_dsn_file)
    settings = None if dsn is not None and config is None else load(config)
    if settings is None:
        _migrate(None, dsn, grant_to, journal_dsn)
        return
    if dsn is not None or journal_dsn is not None:
        _migrate(the_one(settings, database, "a DSN is that of one database"), dsn, grant_to, journal_dsn)
    else:
        each(settings, database, lambda part: _migrate(part, None, grant_to, None))
    # With the last one of several that have owners of their own, all are there.
    if settings.databases and (database is None or dsn is not None):
        from gateway.changes import ownership  # noqa: PLC0415 - it imports all libraries of both planes

        if asyncio.run(ownership.claim_if_new(settings)):
            typer.echo("each database has what the rules give it")


def _migrate(settings: "DatabaseConfig | None", dsn: str | None, grant_to: str | None, journal_dsn: str | None) -> None:
    from gateway import serving  # noqa: PLC0415 - few commands need the database
    from gateway.db import migrations, rights  # noqa: PLC0415 - the same

    target = dsn or settings.postgres.dsn.get_secret_value()  # type: ignore[union-attr]  # one of them is there
    asyncio.run(serving.check_may_migrate(target))
    before = asyncio.run(serving.revision(target))
    migrations.upgrade(target)
    after = asyncio.run(serving.revision(target))
    typer.echo(f"fencing schema: {before or 'not installed'} -> {after}")
    if after is not None and after > migrations.newest():
        # These grants would take away what newer gateways need.
        typer.echo(f"newer than {migrations.newest()}, the newest of this version: nothing was changed, nor granted")
        return
    if grant_to is not None:
        asyncio.run(rights.grant(target, grant_to))
        typer.echo(f"granted to {grant_to}: the rights that a gateway needs, and no others")
    roles = settings.postgres.database_roles if settings else ()
    if roles:
        asyncio.run(rights.let_act(target, roles))
        typer.echo(f"granted to {', '.join(roles)}: to call what fenced statements call")
    if journal_dsn is not None:
        from gateway.journal import rows  # noqa: PLC0415 - the same

        asyncio.run(rows.install(journal_dsn, grant_to))
        typer.echo("the journal has its table")


@application.command()
def doctor(
    config: ConfigPath = None,
    trust: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A role, or a principal of the store, that may write without the gateway; repeatable. "
            "'store' are all users that the store does not show.",
        ),
    ] = None,
    *,
    as_json: ReportAsJson = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for warnings, too.")] = False,
    fix_sql: Annotated[
        bool, typer.Option("--fix-sql", help="Print a script for psql that does what the findings advise.")
    ] = False,
    database: DatabaseName = None,
) -> None:
    """Examine configuration, database and object store, and say who could write without the gateway.

    Exit code 0: no problems. 1: problems, or warnings with --strict. 2: the configuration cannot be read.
    """
    from gateway import findings  # noqa: PLC0415 - few commands examine
    from gateway.doctor.examination import examine  # noqa: PLC0415 - it imports all libraries of the object plane

    settings, known = load(config), places(config)

    def act(part: "DatabaseConfig") -> None:
        report = asyncio.run(examine(part, known=part.places_in(known), trusted=trust or ()))
        if fix_sql:
            typer.echo("\n".join(findings.fix_sql(report)))
            return
        print_report(report, as_json=as_json, strict=strict)

    each(settings, database, act, alone="--json and --fix-sql are about one database" if as_json or fix_sql else None)


application.command()(enforce)


@application.command()
def reload(
    context: typer.Context,
    url: Annotated[
        list[str] | None, typer.Option(envvar="GATEWAY_URL", help="The address of a running gateway; repeatable.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="The file gateway.toml of a gateway on this machine, instead of its address."),
    ] = None,
    api_key_file: AdminKeyFile = None,
) -> None:
    """Let running gateways read their configuration again. Exit code 1: one of them has refused it.

    Each takes it as a whole, or not at all. SIGHUP to 'gateway serve' does the same.
    """
    from gateway.commands.api_client import Gateway  # noqa: PLC0415 - serving needs no HTTP client

    key, refused = api_key(api_key_file), False
    for address in _addresses(context, url or [], config):
        try:
            changes = Gateway(address, key).call("POST", "/v1/config/reload", lambda answer: list(answer["changes"]))
        except GatewayError as error:
            refused = True
            tell(error, address)
            continue
        for line in changes or ["nothing has changed"]:
            typer.echo(visible(f"{address}: {line}"))
    if refused:
        raise typer.Exit(ExitCode.NO)


def _addresses(context: typer.Context, url: list[str], config: Path | None) -> list[str]:
    """Return the gateways that a command is about. An option counts more than a variable."""
    given = context.get_parameter_source("url")
    if config is not None and (given is None or given.name != "COMMANDLINE"):
        return [load(config).server.local_url]
    if config is not None:
        raise ConfigurationError("--url and --config are both given; remove one of them", advice="")
    if not url:
        raise ConfigurationError("--url: there is no address of a gateway.", advice="Or set GATEWAY_URL, or --config.")
    return url


@application.command("open")
def open_database(
    config: ConfigPath = None,
    dsn: Annotated[
        str | None, typer.Option(help="Connect as this owner of the schema fencing, if no gateway is configured.")
    ] = None,
    *,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Open it although raises may be lost. New locks begin an epoch."),
    ] = False,
    database: DatabaseName = None,
) -> None:
    """Open the database for the present run of its server, and raise lost fences to what the journal says.

    Gateways do it by themselves, unless the journal or the database needs an operator (docs/journal.md). With
    --accept-loss it waits first, until no lost write to the object store can arrive any more. It says for how long.
    """
    settings = load(config, dsn)
    alone = not settings.default.has_gateway
    if dsn is not None and not alone:
        advice = "Leave it out."
        raise ConfigurationError("--dsn is for a database without a gateway, and one is configured.", advice=advice)
    if accept_loss and alone:
        # It could not wait for lost writes to the object store, and would take no notice of a journal.
        raise ConfigurationError(
            "--accept-loss: needs the configuration, which says what else may be lost.",
            advice="Name it with --config. Without a gateway, a file with dsn of [postgres] is enough.",
        )
    each(settings, database, lambda part: _open(part, accept_loss=accept_loss))


_COUNTED = timedelta(seconds=15)
_LOSS_UNKNOWN = (
    "WARNING: there is no journal. This looks like a restart or a failover of the server. If its disk was put back, or "
    "the promoted standby lagged behind, fences are lost and overtaken holders may write again. Then stop the writers, "
    "and run 'gateway open --accept-loss' (docs/guides/backup.md)."
)


def _open(settings: "DatabaseConfig", *, accept_loss: bool) -> None:
    from gateway import app  # noqa: PLC0415 - it imports all libraries of both planes
    from gateway.config.sections import NO_DATABASE  # noqa: PLC0415 - help needs no settings

    try:
        opening = asyncio.run(app.open_database(settings, accept_loss=accept_loss, wait=_count_down))
    except ValueError as error:
        raise ConfigurationError(f"postgres.dsn: {NO_DATABASE}", advice="") from error
    if not opening.fresh:
        typer.echo(f"The database is open for the present run of its server, in term {opening.term}.")
        return
    typer.echo(f"The database is open in term {opening.term}.")
    if settings.journal.effective_mode == "off" and not accept_loss:
        typer.echo(_LOSS_UNKNOWN, err=True)
    for loss in opening.losses[:_SHOWN]:
        typer.echo(f"restored: {loss.entry.resource}: {loss.was or 'no fence'} -> {loss.entry.token}")
    if len(opening.losses) > _SHOWN:
        typer.echo(f"restored: {len(opening.losses) - _SHOWN} more fences, all of them on record as fence-restored")
    if opening.waits:
        typer.echo(f"object writes of {len(opening.waits)} resources wait until lost ones cannot arrive any more")
    if not opening.continues:
        typer.echo("The lease service has begun a new epoch: tokens that were lost are not issued again.")
    if opening.accepted is not None:
        typer.echo(f"accepted: {opening.accepted}")


async def _count_down(length: timedelta) -> None:
    """Wait, and say on standard error for how long."""
    if not length:
        return
    say(f"Waiting for {span(length)}, until no lost write to the object store can arrive.")
    left = length
    while left:
        pause = min(left, _COUNTED)
        await asyncio.sleep(pause.total_seconds())
        if left := left - pause:
            say(f"{span(left)} left.")


@application.command()
def sweep(config: ConfigPath = None, database: DatabaseName = None) -> None:
    """Run one round of the sweeper: remove leftovers, and find changes that bypassed the gateway."""
    from gateway import app  # noqa: PLC0415 - it imports all libraries of both planes

    def act(part: "DatabaseConfig") -> None:
        swept = asyncio.run(app.sweep(part))
        typer.echo(f"swept: {swept.tombstones} tombstones, {swept.uploads} uploads, {swept.intents} pending writes")
        typer.echo(f"found: {swept.bypasses} changes that bypassed the gateway")

    each(load(config), database, act)


@application.command()
def credentials(
    url: GatewayUrl,
    resource: Annotated[str, typer.Option(help="The resource of the lock, with * and a last /** as wildcards.")],
    token: Annotated[str, typer.Option(help="The fencing token from the lock service.")],
    holder: Annotated[str | None, typer.Option(help="The name of the holder.")] = None,
    ttl: Annotated[int, typer.Option(help="Seconds until they expire.", min=60, max=43200)] = 3600,
    read: ReadScope = None,
    api_key_file: ApiKeyFile = None,
) -> None:
    """Print temporary S3 keys that write with a fencing token, for credential_process in ~/.aws/config."""
    from gateway.commands.api_client import Gateway, fetch_credentials  # noqa: PLC0415 - serving needs no HTTP client

    gateway = Gateway(url, api_key(api_key_file))
    typer.echo(fetch_credentials(gateway, resource, token, holder, ttl, read or ()))


@application.command("epoch")
def start_epoch(
    url: GatewayUrl,
    reason: Annotated[str, typer.Option(help="The reason, which goes on record.")],
    resource: Annotated[str | None, typer.Argument(help="The resource of the fence.")] = None,
    expected: Annotated[str | None, typer.Option(metavar="TOKEN", help="The token that the fence must carry.")] = None,
    prefix: Annotated[
        str | None, typer.Option(help="Instead: every fence whose name begins with this, one by one.")
    ] = None,
    database: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --prefix: the database, if the gateway serves several.")
    ] = None,
    api_key_file: AdminKeyFile = None,
) -> None:
    """Start a new epoch of a fence whose issuer has lost its counter (docs/policies.md). All earlier tokens end.

    Exit code 1: some of the fences under --prefix failed.
    """
    from gateway.commands import api_client  # noqa: PLC0415 - serving needs no HTTP client

    gateway = api_client.Gateway(url, api_key(api_key_file))
    if resource is not None and expected is not None and prefix is None:
        typer.echo(f"{resource}: {expected} -> {api_client.start_epoch(gateway, resource, expected, reason)}")
        return
    if not prefix or resource is not None or expected is not None:
        raise ConfigurationError("name a RESOURCE and the --expected token, or a --prefix that is not empty", advice="")
    failed = False
    for name, carried in api_client.fences_under(gateway, prefix, database):
        try:
            typer.echo(f"{name}: {carried} -> {api_client.start_epoch(gateway, name, carried, reason)}")
        except GatewayError as error:
            failed = True
            tell(error, name)
    if failed:
        raise typer.Exit(ExitCode.NO)


@application.command(context_settings={"allow_interspersed_args": False})
def run(  # noqa: PLR0913 - an option is an argument
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="The command to run, after --.")],
    lock: Annotated[str, typer.Option(metavar="RESOURCE", help="The lock to hold, e.g. job/42.")],
    url: Annotated[
        str | None,
        typer.Option(envvar="GATEWAY_URL", help="The address of the gateway. Without it, --postgres has the lock."),
    ] = None,
    wait: Annotated[
        float | None, typer.Option(min=0, help="Seconds to wait for the lock. The default is no limit.")
    ] = None,
    ttl: Annotated[float, typer.Option(min=0.1, help="Seconds that the lease lasts without renewal.")] = 30,
    source: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            envvar="GATEWAY_SOURCE",
            help="Another lock service, e.g. etcd://host:2379 (docs/run.md).",
        ),
    ] = "gateway",
    holder: Annotated[
        str | None, typer.Option(help="The beginning of the holder's name. The default is host and process.")
    ] = None,
    credentials: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN", help="The resources of the S3 credentials, instead of the lock's own resource."
        ),
    ] = None,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds between SIGTERM and SIGKILL after the lock was lost.")
    ] = 10,
    api_key_file: ApiKeyFile = None,
    *,
    read: ReadScope = None,
    postgres: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="GATEWAY_POSTGRES",
            help="The database of the command, which finds it in PGHOST and so on. Its sessions end with the lock.",
        ),
    ] = None,
    shared: Annotated[bool, typer.Option("--shared", help="Share the lock with other holders that share it.")] = False,
    pass_api_key: Annotated[bool, typer.Option("--pass-api-key", help="Pass the API key to the command.")] = False,
) -> None:
    """Run a command while holding a lock, with its token in the environment. Stop it when the lock is lost."""
    from gateway.commands.run import Run, is_gateway  # noqa: PLC0415 - it imports the client library

    if (address := url or postgres) is None:
        raise ConfigurationError(
            "--url: there is no address of a gateway.",
            advice="Or set GATEWAY_URL. For one Postgres without a gateway, set --postgres.",
        )
    if url and is_gateway(url):
        key = api_key(api_key_file)
    else:
        key, postgres = api_key_if_any(api_key_file) or "", postgres or address
    wanted = Run(
        command, address, lock, key, environment(), lambda line: say(f"gateway run: {line}"), ttl=ttl,
        wait=wait, mode="shared" if shared else "exclusive", source=source, holder=holder, credentials=credentials,
        read=read or (), grace=grace, pass_api_key=pass_api_key, postgres=postgres,
    )  # fmt: skip
    raise typer.Exit(wanted.run())


@application.command()
def demo(
    port: Annotated[int, typer.Option(help="The port of the gateway on 127.0.0.1.", min=0, max=65535)] = 8080,
    data: Annotated[
        Path | None,
        typer.Option(help="Keep the tables in this folder. The default deletes them. Objects are always deleted."),
    ] = None,
    *,
    story: Annotated[bool, typer.Option("--story", help="Play the story of the paused writer, then exit.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="With --story: keep running for experiments.")] = False,
) -> None:
    """Try the gateway, with an embedded Postgres and S3."""
    from gateway.demo import embedded  # noqa: PLC0415 - few commands need it

    embedded.require_packages()
    from gateway import serving  # noqa: PLC0415 - few commands serve
    from gateway.demo import demonstration  # noqa: PLC0415 - it imports optional packages

    with serving.Signals() as signals:
        succeeded = demonstration.run(port, data, signals, with_story=story, keep=keep)
    if not succeeded:
        raise typer.Exit(ExitCode.NO)


@application.command()
def completion(
    shell: Annotated[Shell, typer.Argument(help="The shell that is to complete the words of this command.")],
) -> None:
    """Print a script that completes commands and options in a shell: source <(gateway completion bash)."""
    typer.echo(get_completion_script(prog_name="gateway", complete_var="_GATEWAY_COMPLETE", shell=shell))


def missing_server_packages() -> list[str]:
    """Return the packages of the extra ``server`` that are not installed."""
    return [name for name in _server_packages() if not _is_installed(name)]


def _server_packages() -> list[str]:
    found = [(_NAME.match(line), line) for line in requires("fencing-gateway") or () if _EXTRA.search(line)]
    return [name[0] for name, _ in found if name]


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
