"""The kinds of stores there are to test with, by name: what starts each."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from tests.stores import ceph, minio, moto, versitygw
from tests.stores.store import Store

KINDS: dict[str, Callable[[], AbstractContextManager[Store]]] = {
    "moto": moto.running,
    "ceph": ceph.running,
    "minio": minio.running,
    "versitygw": versitygw.running,
}
