"""Builds the parts of a gateway from the configuration."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from gateway.auth.callers import Callers
from gateway.auth.issuers import Issuers
from gateway.auth.login_cookies import Terms
from gateway.auth.provider_logins import Provider, ProviderLogins
from gateway.config.databases import DatabaseConfig, Shared
from gateway.config.rules import Alarm as AlarmSection
from gateway.config.rules import Webhook as WebhookSection
from gateway.config.sections import texts
from gateway.db.database import Database
from gateway.db.servers import Servers
from gateway.db.spelling import Spellings
from gateway.db.webhooks import EntryFilter
from gateway.fencing.resource import Template
from gateway.fencing.sequencer import Signer
from gateway.fencing.token_policy import Policies, Policy
from gateway.journal import runner as openings
from gateway.journal.archive import Store
from gateway.journal.bucket import BucketStore
from gateway.journal.journal import Journal
from gateway.journal.opening_table import OpeningTable, Wait, wait_in_silence
from gateway.journal.rows import RowStore
from gateway.journal.trust import Mode
from gateway.leases.terms import LeaseTerms
from gateway.objects.key_rules import DEFAULT_TEMPLATE, KeyRule, Resources
from gateway.objects.protocol.runner import Runner
from gateway.objects.store.operations import Upstream
from gateway.objects.store.probe import Profiles
from gateway.observe.events import Observe, ignore
from gateway.tables.naming import Rule
from gateway.tables.pipeline import Exposure
from gateway.token_admission import Issuer
from gateway.webhooks.alarms import AlarmRule, ConfiguredAlarm
from gateway.webhooks.delivery import Receiver
from gateway.webhooks.messages import key_of
from gateway.webhooks.outbox import ConfiguredWebhook


def resources(config: DatabaseConfig, journals: Sequence[str] = ()) -> Resources:
    """Return the rules that map objects to resources. ``journals``: the prefixes of further journals."""
    rules = [KeyRule.compile(rule.match, rule.resource, rule.mode, rule.equal) for rule in config.key_rules]
    settings = config.fencing
    return Resources(
        rules,
        mode=settings.mode,
        equal=settings.equal,
        journals=[config.journal.prefix, *journals],
        owned=config.owned,
    )


def spellings(config: DatabaseConfig, database: Database) -> Spellings:
    """Return the names that the rules, tables and buckets of a database make."""
    keys = [KeyRule.compile(rule.match, rule.resource).names for rule in config.key_rules]
    tables = {name: rule.template for name, rule in table_rules(config)[0].items() if rule.template is not None}
    return Spellings(database, tables, [*keys, Template.parse(DEFAULT_TEMPLATE)] if config.s3 is not None else [])


def lease_terms(config: DatabaseConfig, policies: Policies) -> LeaseTerms:
    return LeaseTerms(config.leases.max_ttl, config.limits.max_wait, policies.lock_delay, config.leases.issuer)


def policies(config: Shared) -> Policies:
    return Policies(
        [
            (rule.match, Policy(rule.tokens, rule.max_jump, rule.unreachable, rule.lock_delay))
            for rule in config.resources
        ]
    )


def callers(config: DatabaseConfig, issuers: Issuers, clock: Callable[[], datetime]) -> Callers:
    """Return all callers, those of the configuration and those of issuers. ``clock`` returns an aware moment."""
    keys = texts(config.identity.signing_keys)
    return Callers(config.callers, config.grants, config.postgres.roles, issuers, keys, clock)


def logins(config: DatabaseConfig, issuers: Issuers, callers: Callers, observe: Observe) -> ProviderLogins:
    """Return the issuers at which people log in to the page."""
    providers = [
        Provider(
            Terms(one.name, one.issuer, one.login.client_id), one.login, config.server.public_address, one.authorities
        )
        for one in config.issuers
        if one.login is not None and one.issuer is not None and config.server.public_address is not None
    ]
    groups = [group for rule in (*config.grants, *config.postgres.roles) for group in rule.groups]
    return ProviderLogins(providers, issuers, callers.admit, texts(config.identity.signing_keys), groups, observe)


def signer(config: Shared) -> Signer:
    """Return the signer of sequencers, which also verifies them."""
    return Signer(texts(config.leases.signing_keys))


def issuer(config: Shared, observe: Observe) -> Issuer | None:
    """Return the client of the gateway that issues the tokens; None if this gateway does."""
    leases = config.leases
    if leases.issuer is None or leases.issuer_api_key is None:
        return None
    return Issuer(leases.issuer, leases.issuer_api_key.get_secret_value(), observe=observe)


@dataclass(frozen=True, slots=True)
class Storage:
    """The database, whose sessions are admitted once it is open for their run, and the journal that opens it."""

    database: Database
    journal: openings.Runner
    upstream: Upstream | None
    _behind: tuple[Database, ...]

    @property
    def servers(self) -> set[Servers]:
        return {one.servers for one in (self.database, *self._behind)}

    async def close(self) -> None:
        await self.journal.close()
        for one in (self.database, *self._behind):
            await one.close()


def storage(
    config: DatabaseConfig,
    observe: Observe,
    upstream: Upstream | None,
    *,
    owned: bool = True,
    wait: Wait = wait_in_silence,
    **settings: Any,
) -> Storage:
    """Return the database and its journal. They connect at the first query. ``settings``: other limits of sessions.

    Without ``owned``, sessions do not compare what the database owns. Only a change of that may do so. ``wait`` waits
    until no lost write can arrive, where an operator accepts a loss.
    """
    postgres, journal = config.postgres, config.journal
    dsn, mode = postgres.dsn.get_secret_value(), journal.effective_mode
    # Openings come before the first session is admitted.
    idle, connecting = config.limits.idle_timeout, config.limits.connect_timeout
    servers = Servers(dsn, connecting)
    behind = [Database(dsn, pool_size=2, idle_timeout=idle, connect_timeout=connecting, servers=servers)]
    store: Store | None = None
    if mode is not Mode.OFF and journal.dsn is not None:
        second = Database(journal.dsn.get_secret_value(), pool_size=4, idle_timeout=idle, connect_timeout=connecting)
        behind.append(second)
        store = RowStore(second)
    elif mode is not Mode.OFF and journal.bucket is not None and upstream is not None:
        store = BucketStore(upstream, journal.bucket.partition("/")[0], journal.prefix)
    retention = timedelta(days=journal.retention_days)
    kept = None if store is None else Journal(store, retention=retention, observe=observe)
    owner = config.owner if owned else None
    table = OpeningTable(behind[0], owner, wait=wait)
    if config.s3 is not None and upstream is not None:
        late_after = timedelta(seconds=config.s3.late_after)
        table = OpeningTable(behind[0], owner, upstream.time, partial(upstream.longest_put, late_after), wait)
    opener = openings.Runner(mode, table, kept, observe, owner=owner)
    limits = {
        "pool_size": postgres.pool_size,
        "share": config.server.share,
        "statement_timeout": postgres.statement_timeout,
        "read_timeout": postgres.read_timeout,
        "lock_timeout": config.limits.lock_timeout,
        "idle_timeout": idle,
        "connect_timeout": connecting,
    } | settings
    database = Database(dsn, **limits, openings=opener, servers=servers)
    return Storage(database, opener, upstream, tuple(behind))


@asynccontextmanager
async def opened(config: DatabaseConfig, observe: Observe = ignore, **settings: Any) -> AsyncIterator[Storage]:
    """Connect a command to the database and the store of a configuration. ``settings``: as of ``storage``."""
    async with AsyncExitStack() as stack:
        upstream = None
        if config.s3 is not None:
            upstream = await stack.enter_async_context(Upstream(config.s3, observe, config.limits.store_timeout))
        found = storage(config, observe, upstream, **settings)
        stack.push_async_callback(found.close)
        yield found


def object_runner(
    config: DatabaseConfig, storage: Storage, observe: Observe = ignore
) -> tuple[Runner, Profiles] | None:
    """Return the runner of object writes for a command, and its profiles of buckets; None without an object store."""
    if config.s3 is None or storage.upstream is None:
        return None
    profiles = Profiles(storage.upstream, config.s3.distrust)
    runner = Runner(
        *(storage.database, storage.upstream, profiles, observe, config.limits.pending_wait, resources(config)),
        duplicates=config.s3.duplicates,
        late_after=timedelta(seconds=config.s3.late_after),
    )
    return runner, profiles


def table_rules(config: Shared) -> tuple[dict[str, Rule], Rule]:
    """Return the rules by ``schema.table``, and the rule of all other tables."""
    default = Rule(None, config.fencing.mode, config.fencing.equal, cascades=config.fencing.cascades)
    rules = {
        rule.name: Rule(
            None if rule.resource is None else Template.parse(rule.resource),
            rule.mode or default.mode,
            rule.equal or default.equal,
            rule.version,
            rule.cascades or default.cascades,
        )
        for rule in config.tables
    }
    return rules, default


def table_prefixes(config: Shared) -> tuple[str, ...]:
    """Return the prefixes of paths to tables. Clients made for PostgREST append the second one themselves."""
    return ("/v1/tables/", "/rest/v1/") if config.server.rest_v1 else ("/v1/tables/",)


def exposure(config: DatabaseConfig, *, allow_missing: bool = True) -> Exposure:
    """Return the tables that are served, with their rules and limits. ``allow_missing`` is as in ``app.build``."""
    rules, default = table_rules(config)
    postgres = config.postgres
    return Exposure(
        postgres.schemas,
        rules,
        default,
        table_prefixes(config),
        config.limits.table_body,
        max_rows=postgres.max_rows,
        functions=frozenset(postgres.functions),
        verbose_errors=postgres.verbose,
        openapi=postgres.verbose,
        origins=config.server.cors_origins,
        required=frozenset() if allow_missing else frozenset(rules),
    )


def webhooks(config: Shared) -> list[ConfiguredWebhook]:
    """Return the webhooks, each with the alarms it is sent."""
    return [_webhook(one, config.alarms) for one in config.webhooks]


def alarms(config: Shared) -> list[ConfiguredAlarm]:
    return [ConfiguredAlarm(one.name, one.prefix, AlarmRule(one.more_than, one.minutes)) for one in config.alarms]


def _webhook(section: WebhookSection, alarms: tuple[AlarmSection, ...]) -> ConfiguredWebhook:
    keys = tuple(key_of(secret.get_secret_value()) for secret in section.secret)
    told = tuple(alarm.name for alarm in alarms if not alarm.webhooks or section.name in alarm.webhooks)
    wanted = EntryFilter(section.entries, section.prefix, section.observed, told, section.except_reasons)
    return ConfiguredWebhook(section.name, Receiver(section.url, keys), wanted)
