// An application of better-sqlite3, or of Node's own SQLite: DRIVER FILE STEP.

import { setTimeout } from "node:timers/promises";

const [driver, file, step] = process.argv.slice(2);

/** Both drivers have `exec`, `prepare` and `close`. */
async function open() {
  if (driver === "better-sqlite3") {
    const { default: Database } = await import("better-sqlite3");
    return new Database(file, { timeout: 20000 });
  }
  const { DatabaseSync } = await import("node:sqlite");
  return new DatabaseSync(file, { timeout: 20000 });
}

function begin(db) {
  db.exec(`CREATE TABLE shop_project (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL);
    CREATE TABLE shop_task (id INTEGER PRIMARY KEY AUTOINCREMENT, title TEXT NOT NULL, done BOOLEAN NOT NULL,
      project_id INTEGER NOT NULL REFERENCES shop_project (id) ON DELETE CASCADE);
    INSERT INTO shop_project (name) VALUES ('home');
    INSERT INTO shop_task (title, done, project_id) VALUES ('one', 0, 1), ('two', 1, 1)`);
}

/** Thirty transactions: inserts that give their row, a replacement, an upsert, an update within a savepoint that is taken back, a deletion. */
async function write(db) {
  const insert = db.prepare("INSERT INTO shop_task (title, done, project_id) VALUES (?, ?, 1) RETURNING id, title");
  const replace = db.prepare("REPLACE INTO shop_task (id, title, done, project_id) VALUES (?, 'replaced', 1, 1)");
  const upsert = db.prepare(
    "INSERT INTO shop_task (id, title, done, project_id) VALUES (?, 'upserted', 0, 1) ON CONFLICT (id) DO UPDATE SET title = excluded.title",
  );
  const remove = db.prepare("DELETE FROM shop_task WHERE id = ?");
  let keys = 0;
  for (let round = 0; round < 30; round++) {
    db.exec("BEGIN IMMEDIATE");
    const made = [];
    for (let row = 0; row < 10; row++) made.push(insert.get(`round ${round}`, row % 2).id);
    replace.run(made[0]);
    upsert.run(made[1]);
    db.exec("SAVEPOINT doubt; UPDATE shop_task SET title = 'never'; ROLLBACK TO doubt; RELEASE doubt");
    keys += made.length - remove.run(made[2]).changes;
    db.exec("COMMIT");
    // A transaction that is taken back leaves nothing.
    db.exec("BEGIN IMMEDIATE");
    insert.get("never", 0);
    db.exec("ROLLBACK");
    await setTimeout(10);
  }
  return keys;
}

const db = await open();
if (step === "begin") {
  begin(db);
} else {
  db.exec("PRAGMA journal_mode = WAL; PRAGMA foreign_keys = ON");
  console.log(`${await write(db)} keys`);
}
db.close();
