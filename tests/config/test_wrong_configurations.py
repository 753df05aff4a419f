"""Each wrong configuration is refused with its place, what is wrong, and what to do; never with a secret."""

from pathlib import Path

import pytest

from gateway.config import load
from gateway.errors import ConfigurationError

DSN = '[postgres]\ndsn = "postgresql://gateway:hunter2-secret@db/app"\n'
NO_HOSTS = ("http://a..b", "http://" + "a" * 64, "http://a:99999", "http://a b", "http://a\\u0000b")
STORE = '[s3]\nendpoint = "http://s3"\naccess_key_id = "a"\n'
WEBHOOK = '[[webhooks]]\nname = "hook"\nurl = "https://a"\nsecret = "whsec_aHVudGVyMi1zZWNyZXQtaHVudGVyMi1zZWNyZXQ="\n'
GRANT = '[[grants]]\ncallers = ["ann"]\nactions = ["read"]\n'
LOCKS, AUDITS = GRANT.replace("read", "lock"), GRANT.replace("read", "audit")
ROLE = '[[postgres.roles]]\ncallers = ["*"]\n'
ISSUER = '[[issuers]]\nname = "id"\n'
PUBLIC = '[server]\npublic_address = "https://a"\n'
LOGIN = '[issuers.login]\nclient_id = "page"\n'
TRUSTED = ISSUER + 'issuer = "https://a"\naudiences = ["g"]\nkeys_url = "https://a/keys"\n'
ASKING = '[server]\ntls_certificate = "c"\nclient_authorities = "a"\n'
SHOWN = '[[callers]]\nname = "bob"\ncertificates = ["CN:bob"]\n'
CALLER = '[[callers]]\nname = "ann"\napi_key = "hunter2-secret"\n'

NORTH = '[[databases]]\nname = "north"\ndsn = "postgresql://north"\n'
SOUTH = '[[databases]]\nname = "south"\nschemas = ["south"]\ndsn = "postgresql://south"\n'
BOTH = NORTH + SOUTH
OTHER_STORE = '[[stores]]\nname = "other"\nendpoint = "http://s3"\naccess_key_id = "a"\nsecret_access_key = "b"\n'
S3_OF_ALL = OTHER_STORE.replace('[[stores]]\nname = "other"', "[s3]")
LOCKS_OF_SOUTH = SOUTH + 'resources = ["tenant-7/**"]\n'

# The text of a file, and words that its message has.
WRONG: list[tuple[str, ...]] = [
    (DSN + "tx_override = true", "tx_override: is a former key", "in a database for tests"),
    (NORTH + "overrides = true\n" + SOUTH, "overrides: is a former key", "raise PTnnn or PGRST"),
    (SOUTH.replace('["south"]', "[]"), '[[databases]] "south", schemas: requests that name no schema need one here'),
    (BOTH.replace("dsn", "default = true\ndsn"), "exactly one database owns what no rule names", "write it first"),
    (BOTH.replace('["south"]', '["public"]'), '[[databases]] "south", schemas: public belongs to north'),
    (BOTH.replace('["south"]', '["public.eu"]'), "schemas: public.eu has a dot in its name", "rename it"),
    (BOTH.replace('"south"\nsch', '"north"\nsch'), "north is configured twice", "remove or rename one"),
    (BOTH.replace("postgresql://south", "postgresql://north"), "south", "dsn: north has the same one"),
    (BOTH + 'resources = ["a/*x"]', "resources", "must be a name, * or a last **"),
    (NORTH + 'resources = ["tenant-7/*"]\n' + LOCKS_OF_SOUTH, "tenant-7/** overlaps tenant-7/* of north"),
    (BOTH + 'resources = ["public.orders/**"]', "overlaps the rows of the schema public of north"),
    (BOTH + 'buckets = ["bkt"]', '[[databases]] "south", buckets: buckets need an object store', "[s3]"),
    (BOTH + 'store = "other"', "there is no store other", "add it to [[stores]]"),
    (
        OTHER_STORE + BOTH + 'store = "other"\nbuckets = ["bkt/eu/**"]',
        "bkt/eu/**' is a pattern; write the name of a bucket",
        "bucket/prefix/",
    ),
    (
        OTHER_STORE + BOTH + 'store = "other"\nbuckets = ["bkt/eu/"]',
        "bkt/eu/ is in another store than the rest of bkt, which north owns",
        "give both the same store",
    ),
    (
        S3_OF_ALL + NORTH + 'buckets = ["bkt/x/"]\n' + SOUTH + 'buckets = ["bkt/x/y/"]',
        '"south", buckets: bkt/x/y/ overlaps bkt/x/ of north',
        "make them disjoint",
    ),
    (S3_OF_ALL + BOTH + 'buckets = ["South"]', "buckets: no request can name the bucket South"),
    (S3_OF_ALL + BOTH + 'buckets = ["bkt/x"]', "bkt/x must end in a slash"),
    (
        S3_OF_ALL + NORTH + '[databases.journal]\nbucket = "b/j/north/"\n' + SOUTH + 'buckets = ["ccc/j/"]',
        "ccc/j/ has keys of the gateway's own",
        "choose another prefix",
    ),
    (
        S3_OF_ALL + BOTH + 'buckets = ["bkt/.fencing-gateway/x/"]',
        "bkt/.fencing-gateway/x/ has keys of the gateway's own",
    ),
    (
        S3_OF_ALL + BOTH + 'buckets = ["bkt/x/"]\n[[objects]]\nmatch = "bkt/{t}/**"\nresource = "s3/{bucket}/{t}"\n',
        "can name resources of north, and keys of bkt/{t}/** are in south",
        "add a pattern to resources of south",
    ),
    (OTHER_STORE + BOTH, '[[stores]] "other": no database has its buckets in other'),
    (BOTH + '[journal]\nmode = "off"\n', "[journal]: each database has a journal of its own"),
    (
        NORTH + '[databases.journal]\ndsn = "x"\n' + SOUTH + '[databases.journal]\ndsn = "x"\n',
        "north has its journal there as well",
        "give each its own place",
    ),
    (
        S3_OF_ALL
        + (NORTH + '[databases.journal]\nbucket = "b/j/"\n')
        + (SOUTH + '[databases.journal]\nbucket = "b/j/south/"\n'),
        "north has its journal there as well",
        "give each its own place",
    ),
    (
        (OTHER_STORE + OTHER_STORE.replace("other", "same").replace("http://s3", "http://S3:80/"))
        + (NORTH + 'store = "other"\n[databases.journal]\nbucket = "b"\n')
        + (SOUTH + 'store = "same"\n[databases.journal]\nbucket = "b"\n'),
        "north has its journal there as well",
        "give each its own place",
    ),
    (
        NORTH + LOCKS_OF_SOUTH + '[[tables]]\nname = "public.a"\nresource = "tenant-{id}/a"\n',
        '[[tables]] "public.a", resource: tenant-{id}/a of public.a can name resources of south',
        "choose another",
    ),
    (
        BOTH + '[[tables]]\nname = "south.a"\nresource = "order/{id}"\n',
        "can name resources of north, and south.a is in south",
        "add a pattern to resources of south",
    ),
    ("", "[postgres]", "the section is missing", "add it"),
    ("not toml", "line 1", "not TOML", "Correct this line"),
    ('[postgres]\ndns = "x"', "line 2: [postgres], dns: unknown key", "Did you mean dsn?"),
    ("[postgres]\n", "line 1: [postgres], dsn: it is missing", "or dsn_file with the path"),
    ('[postgres]\ndsn = ""', "line 2: [postgres], dsn: must not be empty", "set it"),
    ('[postgres]\ndsn = ["hunter2-secret"]', "line 2: [postgres], dsn: must be a text in quotes"),
    ('[[postgres]]\ndsn = "x"', "line 1: [postgres]: must be written [postgres], with one bracket"),
    ('[postgres]\ndsn_file = "/nowhere/dsn"', "line 2", "dsn_file: /nowhere/dsn cannot be read", "correct the path"),
    ("[postgres]\ndsn_file = 5", "line 2: [postgres], dsn_file: must be a path in quotes"),
]
# The same for texts that come after the address of a database.
WRONG_BESIDE_IT: list[tuple[str, ...]] = [
    (NORTH, "one database is [postgres], several are [[databases]]", "remove one of"),
    (OTHER_STORE, "several stores need several databases"),
    (DSN, "line 3", "[postgres] is there twice"),
    ('schemas = ["a"', "at its end", "not TOML"),
    ('dsn_file = "/x"', "line 3: [postgres], dsn_file: dsn is given as well", "remove one"),
    ('[sever]\nlisten = "x"', "line 3: [sever]: unknown section", "Did you mean server?"),
    ("colour = 3", "line 3: [postgres], colour: unknown key", "Known here: dsn, schemas,"),
    ('[server]\nlisten = "nowhere"', "line 4: [server], listen: must be host:port, such as"),
    ('[server]\ntls_key = "k"', "line 4: [server], tls_key: needs tls_certificate", "set it as well"),
    ('[server]\nclient_authorities = "a"', "line 4: [server], client_authorities: needs tls_certificate"),
    (
        '[server]\ntls_certificate = "c"\nclient_certificates = "demand"',
        "line 5: [server], client_certificates: needs client_authorities",
        "set it as well",
    ),
    (SHOWN, '[[callers]] "bob", certificates: needs client_authorities in [server]', "set it as well"),
    (SHOWN.replace("CN:", ""), '[[callers]] "bob", certificates: bob must be URI:'),
    (
        ASKING + SHOWN + SHOWN.replace('"bob"', '"ann"'),
        'line 11: [[callers]] "ann", certificates: CN:bob is there twice, the first time for bob',
        "remove one",
    ),
    ('[server]\ncors_origins = ["null"]', "line 4: [server], cors_origins: null must be scheme://host"),
    ('schemas = ["fencing"]', "line 3: [postgres], schemas: fencing must not be exposed", "remove it"),
    ('schemas = "public"', "line 3: [postgres], schemas: must be a list"),
    ("schemas = []", "line 3: [postgres], schemas: must not be empty", "set it"),
    ("pool_size = 0", "line 3: [postgres], pool_size: must be more than 0"),
    ('statement_timeout = "soon"', "line 3: [postgres], statement_timeout: must be a number"),
    ("idempotency_retention = 90000", "line 3: [postgres], idempotency_retention: is a former key, and 90000 cannot"),
    ('functions = ["pay"]', "line 3: [postgres], functions: must be schema.name"),
    ('functions = ["sales.pay"]', "line 3: [postgres], functions: the schema of sales.pay", "add sales to"),
    ("[[postgres.roles]]\nrole = 'a'", "line 3: [postgres], roles, callers: it is missing; set it"),
    (ROLE, "roles, role: it is missing; set it"),
    (ROLE + 'role = ["a", "b"]', "only a claim can choose one of several; set claim, or keep one role"),
    (CALLER.replace('"ann"', '"group:ops"'), "group:ops is how grants name a group; choose another name"),
    (ISSUER.replace('"id"', '"group"'), "group: is how names of the gateway's own and of groups begin"),
    (ROLE.replace("*", "who") + 'role = "a"', "there is no caller who"),
    (ISSUER, "line 3", "needs either keys or secret"),
    (ISSUER + 'secret = "hunter2-secret"', "secret", "must have 32 bytes or more"),
    (ISSUER + 'keys = "https://a/keys"', "needs issuer and audiences"),
    (TRUSTED + ISSUER.replace("id", "two") + TRUSTED[len(ISSUER) :], "https://a is configured twice"),
    (ISSUER.replace("id", "Role:"), "name: has a value that is not allowed"),
    (TRUSTED.replace('"id"', '"role"'), "choose another name"),
    (TRUSTED + CALLER.replace("ann", "id:ann"), "id:ann is how callers of an issuer are called"),
    (PUBLIC + TRUSTED + LOGIN, 'line 10: [[issuers]] "id", login: needs a key', "signing_keys in [identity]"),
    (TRUSTED + LOGIN, "login: needs the address to come back to", "public_address in [server]"),
    (TRUSTED + LOGIN.replace('"page"', '"g"'), "login, client_id: is among audiences", "a client of its own"),
    (TRUSTED.replace('issuer = "https', 'issuer = "http') + LOGIN, '"id", issuer: must be an https:// address'),
    (TRUSTED + LOGIN + 'scopes = ["email"]', "login, scopes: must contain openid"),
    (ISSUER + f'secret = "{"x" * 32}"\n' + LOGIN, "login: needs keys in place of secret"),
    (PUBLIC.replace("https", "http"), "line 4: [server], public_address: must be an https:// address"),
    (PUBLIC.replace('a"', 'a/ui"'), "public_address: must have only scheme, host and port"),
    (TRUSTED + GRANT.replace("ann", "idd:*") + 'tables = ["*"]', "no caller idd:*", "Did you mean id:*?"),
    (CALLER + GRANT.replace("ann", "anne") + 'tables = ["*"]', "no caller anne", "Did you mean ann?"),
    ('[server]\nwatch = "perhaps"', "line 4: [server], watch: must be true or false"),
    (STORE, "line 3: [s3], secret_access_key: it is missing", "secret_access_key_file"),
    (STORE + 'secret_access_key = ["a", ""]', "line 6: [s3], secret_access_key", "must not be empty"),
    (
        '[s3]\nendpoint = "s3"\naccess_key_id = "a"\nsecret_access_key = "hunter2-secret"',
        "line 4: [s3], endpoint: must be an http:// or https:// address",
    ),
    *(
        (
            STORE.replace("http://s3", wrong) + 'secret_access_key = "hunter2-secret"',
            "[s3], endpoint: must be an http:// or https:// address",
        )
        for wrong in NO_HOSTS
    ),
    *((WEBHOOK.replace("https://a", wrong), "url: must be an http:// or https:// address") for wrong in NO_HOSTS),
    *(
        (f'[telemetry]\ntraces = "{wrong}"', "[telemetry], traces: must be an http:// or https:// address")
        for wrong in NO_HOSTS
    ),
    *((f'[server]\nlisten = "{host}:1"', "[server], listen: must be host:port") for host in ("a..b", "a" * 64, "a b")),
    *((f'[server]\ncors_origins = ["{wrong}"]', "must be scheme://host[:port] in lower case") for wrong in NO_HOSTS),
    ('[callers]\nname = "a"', "line 3: [callers]: must be written [[callers]], with two brackets"),
    ('[[callers]]\nname = "ann"', 'line 3: [[callers]] "ann": needs an api_key'),
    (CALLER + '[[callers]]\nname = "Ann"\napi_key = "another-key"', 'line 7: [[callers]] "Ann", name', "twice"),
    (CALLER + CALLER.replace("ann", "bob"), 'line 6: [[callers]] "bob": has the same api_key as ann', "its own"),
    (CALLER + 'access_key_id = "b"', '"ann", access_key_id: each access_key_id needs one secret_access_key', "as long"),
    (
        CALLER + 'access_key_id = ["b", "c"]\nsecret_access_key = "hunter2-secret"',
        '"ann", secret_access_key: each access_key_id needs one secret_access_key, in the same order',
    ),
    (CALLER + GRANT, "line 6: [[grants]] without a name (entry 1): has no limits", "or everything = true"),
    (CALLER + GRANT + 'tables = ["orders"]', "tables: orders must be schema.name"),
    (CALLER + GRANT + 'functions = ["public.f"]', "read has no effect on the functions here"),
    (CALLER + GRANT + 'everything = true\ntables = ["public.t"]', "leaves no room for tables"),
    (
        CALLER + GRANT + 'resources = ["a/**/b"]',
        "a/**/b: The segment '**' of the resource pattern must be a name, * or a last **",
    ),
    (CALLER + GRANT + 'buckets = ["**"]', "must begin with the name of a bucket"),
    (CALLER + LOCKS + 'tables = ["public.t"]', "lock goes by resources; set resources as well"),
    (CALLER + AUDITS + 'resources = ["a"]', "audit is about the whole record"),
    (CALLER + "apikeys = []", 'line 6: [[callers]] "ann", apikeys: unknown key', "Did you mean api_key?"),
    ('[[callers]]\nname = "a"\napi_key = "k3y"', "line 5", "has a secret of fewer than 8 characters", "openssl rand"),
    (
        CALLER + 'access_key_id = "b"\nsecret_access_key = "k3y"',
        "line 7",
        "secret_access_key: has a secret of fewer than 8 characters",
    ),
    (CALLER.replace("ann", "anonymous"), '[[callers]] "anonymous", name', "reserved", "choose another name"),
    ('[[tables]]\nname = "orders"', 'line 4: [[tables]] "orders", name: must be schema.name'),
    ('[[tables]]\nname = "a.b"\nressource = "x"', '[[tables]] "a.b", ressource', "Did you mean resource?"),
    ('[[tables]]\nname = "a.b"\n[[tables]]\nname = "a.b"', 'line 6: [[tables]] "a.b", name', "twice", "rename"),
    ('[[objects]]\nmatch = "a/b"\nresource = "{x}{y}"', 'line 5: [[objects]] "a/b", resource', "at most one"),
    ('[[objects]]\nmatch = "a"', 'line 4: [[objects]] "a", match: must have at least 3 characters'),
    ('[[resources]]\nmatch = "a*/b"', 'line 4: [[resources]] "a*/b", match', "must be a name, *"),
    ('[[resources]]\nmatch = "a"\ntokens = "signed"', 'line 5: [[resources]] "a", tokens', "set signing_keys"),
    ('[[resources]]\nmatch = "a"\nlock_delay = inf', 'line 5: [[resources]] "a", lock_delay: must be 3600 or less'),
    ('[leases]\nsigning_keys = ["hunter2-secret"]', "line 4: [leases], signing_keys: must have at least 32"),
    ("[leases]\nmax_ttl = inf", "line 4: [leases], max_ttl: must be 31622400 or less"),
    ('[leases]\nissuer = "https://a.b"', "[leases]: issuer and issuer_api_key belong together", "set both"),
    ('[leases]\nissuer = "https://a.b"\nissuer_api_key = "é"', "line 5: [leases], issuer_api_key: must be"),
    ('[audit]\nredact = ["users.email"]', "line 4: [audit], redact: 'users.email' must be schema.table"),
    *(
        (
            WEBHOOK.replace("https://a", f"https://{user}@a/b"),
            "url: must be an http:// or https:// address without user",
        )
        for user in ("me", "me:pw", ":pw", "")
    ),
    (
        '[[callers]]\nname = "c"\naccess_key_id = "a"\nsecret_access_key = ""\n',
        '[[callers]] "c", secret_access_key',
    ),
    (WEBHOOK.replace("whsec_", ""), 'line 6: [[webhooks]] "hook", secret: must be whsec_ and'),
    (
        WEBHOOK + 'kinds = ["rejections"]',
        'line 7: [[webhooks]] "hook", kinds: there is no kind rejections. Did you mean rejection?',
    ),
    (
        WEBHOOK + '[[alarms]]\nname = "z"\nmore_than = 1\nminutes = 1\nwebhooks = ["hok"]',
        'line 11: [[alarms]] "z", webhooks: there is no webhook hok',
        "Did you mean hook?",
    ),
    ('[[alarms]]\nname = "z"\nmore_than = 1', 'line 3: [[alarms]] "z", minutes: it is missing; set it'),
]
SECRETS = ("hunter2", "aHVudGVyMi", "k3y")
JARGON = (
    "Input should",
    "Value error",
    "Field required",
    "Extra inputs",
    "valid integer",
    "pydantic",
    "callers.",
    "tables.",
    "type=",
)


@pytest.mark.parametrize("wrong", [*WRONG, *((DSN + text, *said) for text, *said in WRONG_BESIDE_IT)])
def test_a_wrong_configuration_is_explained(tmp_path: Path, wrong: tuple[str, ...]) -> None:
    text, *said = wrong
    file = tmp_path / "gateway.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load(file)
    message = f"{caught.value.message} {caught.value.advice}"
    assert str(file) in message
    for words in said:
        assert words in message
    for words in (*SECRETS, *JARGON):
        assert words not in message


def test_a_problem_names_the_variable_that_it_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(DSN)
    monkeypatch.setenv("GATEWAY_POSTGRES__POOL_SIZE", "many")
    with pytest.raises(
        ConfigurationError, match=r"GATEWAY_POSTGRES__POOL_SIZE: \[postgres\], pool_size: must be a whole"
    ):
        load(file)
    monkeypatch.delenv("GATEWAY_POSTGRES__POOL_SIZE")
    monkeypatch.setenv("GATEWAY_CALLERS", '[{"name": "ann"}]')
    with pytest.raises(ConfigurationError, match=r'GATEWAY_CALLERS: \[\[callers\]\] "ann": needs an api_key'):
        load(file)
    monkeypatch.setenv("GATEWAY_CALLERS", "ann")
    with pytest.raises(ConfigurationError, match="GATEWAY_CALLERS: must be JSON"):
        load(file)
    monkeypatch.delenv("GATEWAY_CALLERS")
    monkeypatch.setenv("GATEWAY_SEVER__LISTEN", "x")
    with pytest.raises(ConfigurationError, match=r"GATEWAY_SEVER__LISTEN: unknown section SEVER\. Did you mean SERVER"):
        load(file)


def test_secrets_come_from_files(tmp_path: Path) -> None:
    """One newline at the end of a file is no part of its secret, and a list has one secret on each line."""
    for name, content in (
        ("dsn", "postgresql://db/app\n"),
        ("store", "store-secret\n"),
        ("api", "first-api-key\nsecond-api-key\n"),
        ("pair", "pair-secret\r\n"),
        ("signing", f"{'s' * 32}\n{'t' * 32}\n"),
    ):
        (tmp_path / name).write_bytes(content.encode())
    file = tmp_path / "gateway.toml"
    file.write_text(
        f'[postgres]\ndsn_file = "{tmp_path}/dsn"\n{STORE}secret_access_key_file = "{tmp_path}/store"\n'
        f'[leases]\nsigning_keys_file = "{tmp_path}/signing"\n'
        f'[[callers]]\nname = "ann"\napi_key_file = "{tmp_path}/api"\n'
        f'access_key_id = "AKIAANN"\nsecret_access_key_file = "{tmp_path}/pair"\n'
    )
    config = load(file)
    assert config.default.postgres.dsn.get_secret_value() == "postgresql://db/app"
    assert config.s3 is not None
    assert config.s3.secret_access_key[0].get_secret_value() == "store-secret"
    caller = config.callers[0]
    assert [key.get_secret_value() for key in caller.api_key] == ["first-api-key", "second-api-key"]
    assert caller.pairs == (("AKIAANN", "pair-secret"),)
    assert [key.get_secret_value()[0] for key in config.leases.signing_keys] == ["s", "t"]


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff"])
def test_a_file_without_a_secret_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "dsn").write_bytes(content)
    file = tmp_path / "gateway.toml"
    file.write_text(f'[postgres]\ndsn_file = "{tmp_path}/dsn"\n')
    with pytest.raises(ConfigurationError, match=f"dsn_file: {tmp_path}/dsn is (empty|not text)"):
        load(file)
