"""Changes of facts that a database holds: the names of rows and keys, and the share of each of several databases.

``orders`` has the order of each change, without I/O; the explorer plays both. ``naming`` and ``ownership`` carry them
out, for ``gateway naming`` and ``gateway databases``. Only commands and the doctor import this.
"""
