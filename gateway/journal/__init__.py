"""The journal: raised fences outside the database, so that a rewound one does not serve stale holders.

``protocol`` decides, as generators that yield effects: a raise is appended, the marker is looked at, then the raise is
committed. A database is opened once for each run of its server, and an opening raises lost fences again. The explorer
of ``tests/model`` plays these generators, with rewinds. ``trust`` judges whether a database and its journal may
be used. ``runner`` carries the effects out.

``contents``, ``format`` and ``evidence`` are pure. ``bucket`` and ``rows`` are the two stores. At run time only
``Database`` meets the journal, through ``runner``: no plane knows whether there is one.
"""
