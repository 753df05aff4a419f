"""The caller of a request, and its rights.

``callers`` proves a caller by one of these: an API key, an S3 signature, an identity token, a client certificate, a
session of the page. The result is a ``Principal``. Nothing is believed before its proof. Authentication waits for
nothing, because the hot path calls it: keys of issuers are fetched before (``issuers``).

Proofs that the gateway gives out are signatures, and nothing of them is stored (``temporary_keys``, ``login_cookies``).
``grants`` decides, in less than 3 µs, which actions a caller may do where. Grants only add.

Planes import ``principal`` and ``grants``; assembly imports ``callers``. Most modules are pure.
"""
