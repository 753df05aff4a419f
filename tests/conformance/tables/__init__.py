"""PostgREST's behaviour with a table, as rows of data. The gateway does the same, or differs for a stated reason.

``rows/*.toml`` hold the rows, and ``schema.sql`` and ``data.sql`` the tables that they need. ``differences.txt`` lists
the rows that the gateway answers differently on purpose. ``test_rows.py`` plays them against the gateway, ``replay.py``
against any address.
"""
