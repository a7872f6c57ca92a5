"""The models, as they are after each migration."""

import os

from django.db import models

stage = int(os.environ["SHOP_STAGE"])


class Project(models.Model):
    name = models.CharField(max_length=50 if stage == 1 else 80, db_index=stage > 1)


class Task(models.Model):
    project = models.ForeignKey(Project, on_delete=models.CASCADE)
    title = models.CharField(max_length=100 if stage == 1 else 200)
    done = models.BooleanField(default=False)
    if stage > 1:
        color = models.CharField(max_length=9, null=True)
    if stage == 3:
        stars = models.IntegerField(default=3)

    class Meta:
        indexes = [models.Index(fields=["title"], name="by_title")] if stage > 1 else []
