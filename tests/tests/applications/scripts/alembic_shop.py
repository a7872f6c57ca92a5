"""An application of SQLAlchemy and Alembic: FILE STEP."""

import sys

import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.orm import Session, declarative_base

file, step = sys.argv[1], sys.argv[2]
engine = sa.create_engine(f"sqlite:///{file}", connect_args={"timeout": 20})
Base = declarative_base()


class Project(Base):
    __tablename__ = "shop_project"
    id = sa.Column(sa.Integer, primary_key=True)
    name = sa.Column(sa.String(50), nullable=False)


class Task(Base):
    __tablename__ = "shop_task"
    id = sa.Column(sa.Integer, primary_key=True)
    title = sa.Column(sa.String(100), nullable=False)
    done = sa.Column(sa.Boolean, nullable=False, default=False)
    project_id = sa.Column(sa.Integer, sa.ForeignKey("shop_project.id"), nullable=False)
    if step != "begin":
        color = sa.Column(sa.String(9))


if step == "begin":
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(Project(id=1, name="home"))
        session.flush()
        session.add_all(Task(id=number, title=title, project_id=1) for number, title in enumerate(["one", "two"], 1))
        session.commit()
elif step == "migrate":
    with engine.begin() as connection:
        operations = Operations(MigrationContext.configure(connection))
        with operations.batch_alter_table("shop_task", recreate="always") as batch:
            batch.add_column(sa.Column("color", sa.String(9), server_default="red"))
            batch.alter_column("title", type_=sa.String(200))
            batch.create_index("by_title", ["title"])
elif step == "write":
    with Session(engine) as session:
        session.merge(Task(id=1, title="merged", done=True, project_id=1))
        session.add(Task(id=9, title="made", project_id=1, color="blue"))
        session.commit()
        row = {"id": 2, "title": "upserted", "done": False, "project_id": 1, "color": "green"}
        session.execute(insert(Task).values(row).on_conflict_do_update(index_elements=["id"], set_=row))
        session.commit()
else:
    sys.exit(f"unknown step {step}")
