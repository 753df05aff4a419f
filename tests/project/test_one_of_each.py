"""Hold that there is one of each: one background task, one pause that grows, one batcher, one memory that forgets.

A module that needs a thing of its own stands here with its reason. The client library runs in other programs: it has
its own things, and none of them is looked at here.
"""

import ast
import re

import pytest

from tests.project.test_import_table import covers, modules

EXCEPTIONS: dict[str, dict[str, str]] = {
    # A task that no ``background_tasks`` or ``at_a_time`` holds.
    r"\b(create_task|ensure_future)\(": {
        "background": "it has both",
        "batching": "a batch belongs to no request",
        "http": "a connection, and an answer that ends with its client",
        "db.database": "a probe that all who ask share",
        "db.servers": "several servers are asked at once, and the first answer counts",
        "objects.store.connection": "a body goes out while an answer may come",
        "objects.store.probe": "writers that race on purpose",
        "reloading": "gateways come and go while it runs",
        "tables.execute.batches": "a request beside its batch",
        "webhooks.outbox": "deliveries come and go while it runs",
        "workers": "workers come and go while it runs",
    },
    # A wait of a fixed length. Work that is repeated belongs to ``repeat``, or waits with ``wait_until``.
    r"\basyncio\.sleep\(": {
        "background": "it has both",
        "auth.issuers": "the pause depends on the keys that are there, and a failed fetch is no error",
        "changes.naming": "another writer ends in another process",
        "cli": "an operator waits",
        "db.migrations": "writers go on between two attempts to lock their tables",
        "db.ownership": "sessions end in other processes",
        "db.servers": "requests tell of servers that do not answer",
        "guard.watching": "another gateway ends its look",
        "journal.opening_table": "an operator waits",
        "journal.runner": "another gateway ends its opening",
        "leases.service": "heartbeats while there are waiters; a request asks again before its end",
        "objects.protocol.runner": "another writer ends in another process",
        "objects.store": "the store settles",
        "reloading": "a state that is wrong is tried once",
        "service_manager": "it has nothing that may fail",
        "tables.schema_cache": "the work ends with its first success",
        "workers": "a process waits for another one",
    },
    # Pauses that grow.
    r"\bmin\(2 \* ": {"background": "it has them"},
    # A memory that drops its oldest entry, in place of ``Bounded``.
    r"\bdel [\w.]+\[(oldest|next\(iter)": {
        "db.roles": "the server has to forget each statement, too",
        "http.turns": "a flood must not make all callers wait that have proven themselves",
    },
    # Work of which so much may go on at one time.
    r"\bSemaphore\(": {"background": "at_a_time", "auth.provider_logins": "requests come one by one"},
}


@pytest.mark.parametrize("what", EXCEPTIONS)
def test_only_these_modules_have_one_of_their_own(what: str) -> None:
    found = {
        module
        for module, path in modules()
        if not covers("client", module) and re.search(what, path.read_text(), re.MULTILINE)
    }
    unknown = {module for module in found if not covers(" ".join(EXCEPTIONS[what]), module)}
    assert not unknown, f"use gateway.background, or say why not: {sorted(unknown)}"
    unused = [one for one in EXCEPTIONS[what] if not any(covers(one, module) for module in found)]
    assert not unused, f"these have none any more: {unused}"


def test_nothing_else_is_emptied_when_it_is_full() -> None:
    """``fast_path`` is no exception: it counts the recipes of a form, and compares no length."""
    found = set()
    for module, path in modules():
        source = path.read_text()
        for function in ast.walk(ast.parse(source)) if ".clear()" in source else ():
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.unparse(function)
                if re.search(r"\bif\b.*\blen\(.*(>=|>).*:\n +(self|super\(\))[\w.]*\.clear\(\)", text):
                    found.add(module)
    assert found == {"bounded"}
