"""The naming of tables and buckets becomes a fact of the database, from ``r0002_naming.sql``."""

from pathlib import Path

from alembic import op
from sqlalchemy.engine import AdaptedConnection

revision = "r0002"
down_revision = "r0001"


def upgrade() -> None:
    """Run the statements of the file beside this one, all in one round trip."""
    script = Path(__file__).with_suffix(".sql").read_text()
    session = op.get_bind().connection.dbapi_connection
    assert isinstance(session, AdaptedConnection)
    session.run_async(lambda driver: driver.execute(script))
