"""PostgreSQL: the one door to asyncpg, and the statements of each subject.

``Database`` runs statements and transactions. It decides once what an error means: ``unavailable`` (nothing was
written), ``outcome-unknown`` (a commit whose answer is lost), or an error of the statement. A commit counts once its
standby has it. A session is admitted once: to the right server, run, schema and owner. No plane knows of that, nor of
the journal.

Contended logic is a function in ``schema/``, because one statement takes its snapshot before it waits for a lock.
Functions have a version in their names, and a released one keeps its meaning. ``queries/`` has the fixed statements.
Locks are taken in one order: fences by name, then rows.

Modules beside ``database`` have the statements of one subject each, as functions of a ``Database`` or a
``Transaction``. They decide nothing. Planes and services import them. They import ``fencing`` and pure parts of others.
"""
