"""A database says for which run of its server it was opened, from ``r0003_opening.sql``."""

from pathlib import Path

from alembic import op
from sqlalchemy.engine import AdaptedConnection

revision = "r0003"
down_revision = "r0002"


def upgrade() -> None:
    """Run the statements of the file beside this one, all in one round trip."""
    script = Path(__file__).with_suffix(".sql").read_text()
    session = op.get_bind().connection.dbapi_connection
    assert isinstance(session, AdaptedConnection)
    session.run_async(lambda driver: driver.execute(script))
