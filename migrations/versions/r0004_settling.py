"""Forbidden ETags end, and a write of a key settles older ones of it, from ``r0004_settling.sql``."""

from pathlib import Path

from alembic import op
from sqlalchemy.engine import AdaptedConnection

revision = "r0004"
down_revision = "r0003"


def upgrade() -> None:
    """Run the statements of the file beside this one, all in one round trip."""
    script = Path(__file__).with_suffix(".sql").read_text()
    session = op.get_bind().connection.dbapi_connection
    assert isinstance(session, AdaptedConnection)
    session.run_async(lambda driver: driver.execute(script))
