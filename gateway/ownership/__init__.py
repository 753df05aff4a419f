"""Changes of what each of several databases owns: ``gateway databases``.

The share of a database is a fact in it, and lets sessions in. ``change`` has the order of a change, without I/O. A
database is opened only after all that are concerned are closed. The explorer plays it. Only commands import this.
"""
