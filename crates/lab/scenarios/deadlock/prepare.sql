CREATE TABLE lab_deadlock (id INTEGER PRIMARY KEY, changes INTEGER NOT NULL);
INSERT INTO lab_deadlock
  WITH RECURSIVE ids (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM ids WHERE id < :rows)
  SELECT id, 0 FROM ids;
