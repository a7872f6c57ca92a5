-- What Headwater keeps in a remote beside the application's tables and their logs.
CREATE TABLE "hw_state" (
  "one" INTEGER PRIMARY KEY CHECK ("one" = 1),
  "format" INTEGER NOT NULL,
  "remote_id" BLOB NOT NULL,
  "secret" BLOB NOT NULL,
  "server" TEXT NOT NULL,
  "user" TEXT NOT NULL,
  "model" TEXT NOT NULL,
  "fingerprint" INTEGER NOT NULL,
  "incarnation" BLOB NOT NULL,
  "note" BLOB NOT NULL,
  "upload_sequence" INTEGER NOT NULL DEFAULT 0,
  "upload_used" INTEGER NOT NULL DEFAULT 0,
  "download_applied" BLOB NOT NULL,
  "frozen" INTEGER NOT NULL DEFAULT 0,
  "frozen_changes" INTEGER NOT NULL DEFAULT 0,
  "frozen_digest" BLOB,
  "cut_bytes_max" INTEGER NOT NULL DEFAULT 268435456,
  "adopted" INTEGER NOT NULL DEFAULT 0,
  "staged" INTEGER NOT NULL DEFAULT 0,
  "last_sync" TEXT,
  "upload_refused" TEXT
);
CREATE TABLE "hw_mark" ("id" INTEGER PRIMARY KEY, "bytes" BLOB NOT NULL);
CREATE TABLE "hw_watermark" (
  "table" INTEGER NOT NULL,
  "partition" BLOB NOT NULL,
  "mark" INTEGER NOT NULL,
  PRIMARY KEY ("table", "partition")
) WITHOUT ROWID;
CREATE TABLE "hw_upload" (
  "upload" INTEGER NOT NULL,
  "frame" INTEGER NOT NULL,
  "kind" INTEGER NOT NULL,
  "payload" BLOB NOT NULL,
  PRIMARY KEY ("upload", "frame")
);
CREATE TABLE "hw_sent" (
  "upload" INTEGER PRIMARY KEY,
  "bytes" INTEGER NOT NULL,
  "receipt" BLOB NOT NULL,
  "digest" BLOB
);
CREATE TABLE "hw_lost" (
  "id" INTEGER PRIMARY KEY,
  "time" TEXT NOT NULL,
  "first" INTEGER NOT NULL,
  "last" INTEGER NOT NULL,
  "changes" INTEGER NOT NULL
);
CREATE TABLE "hw_tracking" ("table" INTEGER PRIMARY KEY, "triggers" TEXT NOT NULL, "doubt" INTEGER NOT NULL DEFAULT 0, "checked" INTEGER);
CREATE TABLE "hw_staged" ("frame" INTEGER PRIMARY KEY, "bytes" BLOB NOT NULL);
CREATE TABLE "hw_held" (
  "table" INTEGER NOT NULL,
  "key" BLOB NOT NULL,
  "image" BLOB,
  "why" TEXT,
  "leaves" INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY ("table", "key")
) WITHOUT ROWID;
CREATE TABLE "hw_set_aside" (
  "id" INTEGER PRIMARY KEY AUTOINCREMENT,
  "time" TEXT NOT NULL,
  "table" INTEGER NOT NULL,
  "name" TEXT NOT NULL,
  "key" BLOB NOT NULL,
  "key_text" TEXT NOT NULL,
  "code" INTEGER NOT NULL,
  "reason" TEXT NOT NULL,
  "message" TEXT NOT NULL,
  "in_place" INTEGER NOT NULL,
  "old" BLOB,
  "old_text" TEXT,
  "new" BLOB,
  "new_text" TEXT
);
-- A row has one change that is set aside where it stands, and any number that only the list has.
CREATE UNIQUE INDEX "hw_set_aside_in_place" ON "hw_set_aside" ("table", "key") WHERE "in_place" = 1;
CREATE INDEX "hw_set_aside_key" ON "hw_set_aside" ("table", "key");
CREATE TABLE "hw_conflict" (
  "id" INTEGER PRIMARY KEY,
  "time" TEXT NOT NULL,
  "upload" INTEGER NOT NULL,
  "table" INTEGER NOT NULL,
  "name" TEXT NOT NULL,
  "key" BLOB NOT NULL,
  "key_text" TEXT NOT NULL,
  "old_text" TEXT,
  "ours_text" TEXT,
  "end" TEXT NOT NULL,
  "result_text" TEXT,
  "is_open" INTEGER NOT NULL
);
CREATE INDEX "hw_conflict_open" ON "hw_conflict" ("table", "key") WHERE "is_open" = 1;
CREATE TABLE "hw_key_range" (
  "table" INTEGER NOT NULL,
  "first" INTEGER NOT NULL,
  "last" INTEGER NOT NULL,
  "next" INTEGER NOT NULL,
  PRIMARY KEY ("table", "first")
) WITHOUT ROWID;
-- Of tables that the model has no more: a later version may bring them back.
CREATE TABLE "hw_key_range_gone" (
  "name" TEXT NOT NULL COLLATE NOCASE,
  "first" INTEGER NOT NULL,
  "last" INTEGER NOT NULL,
  "next" INTEGER NOT NULL,
  PRIMARY KEY ("name", "first")
) WITHOUT ROWID;
-- The application's own tables that others refer to: behind all of them in the catalogue.
CREATE TABLE "hw_parent" ("name" TEXT PRIMARY KEY, "ways" TEXT) WITHOUT ROWID;
CREATE TABLE "hw_applying" ("table" INTEGER PRIMARY KEY);

CREATE VIEW "hw_leaving" AS SELECT 1 AS "leaving" FROM "hw_applying" WHERE "table" = 4294967296;
