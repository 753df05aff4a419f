"""A guard refuses while the database is closed, from ``r0005_closed_guard.sql``."""

from pathlib import Path

from alembic import op
from sqlalchemy.engine import AdaptedConnection

revision = "r0005"
down_revision = "r0004"


def upgrade() -> None:
    """Run the statements of the file beside this one, all in one round trip."""
    script = Path(__file__).with_suffix(".sql").read_text()
    session = op.get_bind().connection.dbapi_connection
    assert isinstance(session, AdaptedConnection)
    session.run_async(lambda driver: driver.execute(script))
