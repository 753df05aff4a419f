"""What PostgREST does with a table, as rows of data; that the gateway does the same, or why it does not.

``rows/*.toml`` hold the rows, ``schema.sql`` and ``data.sql`` what they ask for, ``differences.txt`` where the gateway
answers differently on purpose. ``test_rows.py`` plays them against the gateway, ``replay.py`` against any address.
"""
