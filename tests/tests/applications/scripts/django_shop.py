"""An application of Django: FILE STEP. Its migrations lie beside the file."""

import os
import sys

file, step = sys.argv[1], sys.argv[2]
home = file + "-django"
os.makedirs(os.path.join(home, "shop_migrations"), exist_ok=True)
open(os.path.join(home, "shop_migrations", "__init__.py"), "a").close()
sys.path[:0] = [home, os.path.dirname(__file__)]
# What the models are: as many changes have been made to them.
stage = os.path.join(home, "stage")
if step.startswith("migrate"):
    with open(stage, "w") as out:
        out.write(step.split()[1])
os.environ["SHOP_STAGE"] = open(stage).read() if os.path.exists(stage) else "1"

from django.conf import settings

settings.configure(
    INSTALLED_APPS=["shop"],
    MIGRATION_MODULES={"shop": "shop_migrations"},
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": file, "OPTIONS": {"timeout": 20}}},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    USE_TZ=True,
)
import django

django.setup()
from django.core.management import call_command
from shop.models import Project, Task


def migrate():
    call_command("makemigrations", "shop", interactive=False, verbosity=0)
    call_command("migrate", interactive=False, verbosity=0)


if step == "begin":
    migrate()
    project = Project.objects.create(name="home")
    Task.objects.bulk_create(Task(project=project, title=title) for title in ["one", "two", "three"])
elif step.startswith("migrate"):
    migrate()
elif step == "write":
    Task.objects.filter(id=1).update(title="pending")
    Task.objects.get(id=2).delete()
    work = Project.objects.create(name="work")
    made = [Task(id=1, project=work, title="there already"), Task(id=7, project=work, title="made", color="red")]
    Task.objects.bulk_create(made, ignore_conflicts=True)
    Task.objects.update_or_create(id=3, defaults={"title": "renamed", "color": "blue"})
    Task.objects.get_or_create(id=8, defaults={"project": work, "title": "given"})
    # Django carries the cascade out by itself.
    gone = Project.objects.create(name="gone")
    Task.objects.create(project=gone, title="goes with it")
    gone.delete()
elif step == "write more":
    Task.objects.create(project=Project.objects.first(), title="meanwhile")
else:
    sys.exit(f"unknown step {step}")
