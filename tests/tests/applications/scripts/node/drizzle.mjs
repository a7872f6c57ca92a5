// An application of Drizzle on libSQL: FILE STEP.

import { cpSync, mkdirSync, writeFileSync } from "node:fs";

import { createClient } from "@libsql/client";
import { eq, sql } from "drizzle-orm";
import { drizzle } from "drizzle-orm/libsql";
import { migrate } from "drizzle-orm/libsql/migrator";
import { integer, sqliteTable, text } from "drizzle-orm/sqlite-core";

const [file, step] = process.argv.slice(2);
const client = createClient({ url: `file:${file}` });
await client.execute("PRAGMA busy_timeout = 20000");
const db = drizzle(client);
const project = sqliteTable("shop_project", { id: integer("id").primaryKey({ autoIncrement: true }), name: text("name").notNull() });
const task = sqliteTable("shop_task", {
  id: integer("id").primaryKey({ autoIncrement: true }),
  title: text("title").notNull(),
  done: integer("done", { mode: "boolean" }).notNull(),
  project: integer("project_id").notNull().references(() => project.id, { onDelete: "cascade" }),
  ...(step === "write" ? { color: text("color") } : {}),
});

// The migrations that `drizzle-kit generate` writes, as far as they have come.
function until(count) {
  const folder = `${file}-drizzle`;
  cpSync(new URL("migrations", import.meta.url), folder, { recursive: true });
  const entries = ["0000_begin", "0001_color"].slice(0, count);
  const journal = { version: "7", dialect: "sqlite", entries: entries.map((tag, idx) => ({ idx, version: "6", when: 1700000000000 + idx, tag, breakpoints: true })) };
  mkdirSync(`${folder}/meta`, { recursive: true });
  writeFileSync(`${folder}/meta/_journal.json`, JSON.stringify(journal));
  return { migrationsFolder: folder };
}

if (step === "begin") {
  await migrate(db, until(1));
  await db.insert(project).values({ name: "home" });
  await db.insert(task).values([{ title: "one", done: false, project: 1 }, { title: "two", done: true, project: 1 }]);
} else if (step === "migrate") {
  await migrate(db, until(2));
} else if (step === "write") {
  await db.transaction(async (tx) => {
    await tx.update(task).set({ title: "updated", color: "red" }).where(eq(task.id, 1));
    const made = await tx.insert(task).values({ title: "made", done: false, project: 1, color: "blue" }).returning();
    if (made.length !== 1) throw new Error("no row came back");
    await tx
      .insert(task)
      .values({ id: 2, title: "upserted", done: true, project: 1 })
      .onConflictDoUpdate({ target: task.id, set: { title: sql`excluded.title` } });
  });
} else {
  throw new Error(`unknown step ${step}`);
}
client.close();
