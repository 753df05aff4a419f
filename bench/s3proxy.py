"""S3Proxy as the peer: a proxy in Java of the same store. It checks signatures and signs again, and fences nothing."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.processes import free_port
from tests.stores.processes import answers, daemon, wait_until
from tests.stores.store import REGION, Store, StoreMissing

VERSION = "3.1.0"
_JAR = Path("build") / f"s3proxy-{VERSION}-jar-with-dependencies.jar"
_COPY = ("dependency:copy", f"-Dartifact=org.gaul:s3proxy:{VERSION}:jar:jar-with-dependencies")

_CONFIGURATION = """
s3proxy.endpoint={origin}
s3proxy.authorization=aws-v4
s3proxy.identity={access_key}
s3proxy.credential={secret_key}
jclouds.provider=aws-s3-sdk
jclouds.endpoint={store}
jclouds.identity={access_key}
jclouds.credential={secret_key}
jclouds.region={region}
jclouds.s3.virtual-host-buckets=false
"""


@contextmanager
def in_front_of(store: Store) -> Iterator[str]:
    """Start a proxy of the store, and yield its origin. Raises ``StoreMissing``. Maven fetches it the first time."""
    java, maven = shutil.which("java"), shutil.which("mvn")
    if java is None or maven is None:
        raise StoreMissing("s3proxy needs Java and Maven; on Debian: apt-get install default-jdk-headless maven")
    if not _JAR.exists():
        subprocess.run([maven, "--batch-mode", "--quiet", *_COPY, f"-DoutputDirectory={_JAR.parent}"], check=True)
    origin, keys = f"http://127.0.0.1:{free_port()}", store.owner
    with TemporaryDirectory(prefix="s3proxy") as name:
        configuration, log = Path(name) / "s3proxy.conf", Path(name) / "log"
        configuration.write_text(
            _CONFIGURATION.format(
                origin=origin,
                store=store.endpoint,
                region=REGION,
                access_key=keys.access_key_id,
                secret_key=keys.secret_access_key,
            )
        )
        with daemon([java, "-jar", str(_JAR.absolute()), "--properties", str(configuration)], log) as process:
            wait_until(partial(answers, origin), process, log)
            yield origin
