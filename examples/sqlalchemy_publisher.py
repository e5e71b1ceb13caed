"""Publishing from SQLAlchemy, on the session that writes the rows and without any asyncio.

    python examples/sqlalchemy_publisher.py

Prints what was published; consume it with: postbus consume users.registered
"""

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from postbus import Bus

bus = Bus.open()


class Base(DeclarativeBase):
    pass


class User(Base):
    __tablename__ = "example_user"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


def register(session: Session, name: str) -> int:
    """Add a user, and publish that in the transaction of the session."""
    user = User(name=name)
    session.add(user)
    session.flush()  # which gives the user an id
    return bus.publish(session, "users.registered", {"id": user.id, "name": user.name})


def main() -> None:
    engine = create_engine(bus.dsn.replace("postgresql://", "postgresql+psycopg://", 1))
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        print("published message", register(session, "ada"))
    with Session(engine) as session:
        register(session, "ben")
        session.rollback()  # neither ben nor his message was ever there
    engine.dispose()
    bus.close_sync()


if __name__ == "__main__":
    main()
