"""A fencing gateway for Postgres tables and S3 objects.

The one promise: once a newer holder of a resource is acknowledged, no older holder's write takes effect. A *resource*
is a name that rows and keys are mapped to. A *token* is a number that a lock service gives to each holder. A *fence* is
the newest token that the gateway has acknowledged for a resource, as a row in PostgreSQL.

A request passes these places:

1. ``http``, then ``app`` and ``part``: one connection, one frozen head, one plane.
2. ``auth`` and ``token_admission``: the caller, its grants, and the tokens that a policy lets through.
3. ``tables``, ``objects`` or ``leases``: parse, plan, claim, write, verify, answer.
4. ``db``: the claim, under the lock of the fence. All that decides is in the database, by its clock.
5. ``record``: a refusal is durable before it is answered.

``fencing`` has the rules, without I/O, and ``errors`` every error. Folders import downwards only:
``tests/project/test_import_table.py`` has a row for each. ``client`` stands apart, and is for programs to import.
``docs/architecture.md`` is the map.
"""
